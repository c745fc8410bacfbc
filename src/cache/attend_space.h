// What calls of attention work in.
#pragma once

#include "backend/attention.h"
#include "core/memory.h"

#include <mutex>

namespace kvq {

/// Kept from call to call, so that these allocate nothing once a batch as large has been seen.
struct AttendSpace {
  AttendSpace(Allocator& allocator, Attention& attention)
      : workspace(attention.make_workspace(allocator)),
        sequences(StlAllocator<AttendSequence>(allocator)),
        lists(StlAllocator<const Page* const*>(allocator)),
        counts(StlAllocator<int32_t>(allocator)),
        positions(StlAllocator<int32_t>(allocator)),
        next(nullptr, Deleter<AttendSpace>(allocator, 0, 0)) {}

  Owned<Workspace> workspace;
  Vector<AttendSequence> sequences;
  Vector<const Page* const*> lists;
  Vector<int32_t> counts;
  Vector<int32_t> positions;
  Owned<AttendSpace> next;  // while nobody has it
};

/// As many as calls have ever come at once. The one given back last is the next to be taken: calls of one thread always
/// have the same, which a CUDA graph that records one relies on.
class AttendSpaces {
 public:
  /// The first one is made at once. Memory comes from `allocator`.
  AttendSpaces(Allocator& allocator, Attention& attention)
      : allocator_(allocator), attention_(attention), free_(make_owned<AttendSpace>(allocator, allocator, attention)) {}

  /// One of them, for as long as this lives.
  class Lease {
   public:
    explicit Lease(AttendSpaces& spaces) : spaces_(spaces), space_(spaces.take()) {}
    ~Lease() { spaces_.give_back(std::move(space_)); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    AttendSpace* operator->() const { return space_.get(); }

   private:
    AttendSpaces& spaces_;
    Owned<AttendSpace> space_;
  };

 private:
  Owned<AttendSpace> take();
  void give_back(Owned<AttendSpace> space) noexcept;

  Allocator& allocator_;
  Attention& attention_;
  std::mutex mutex_;
  Owned<AttendSpace> free_;  // the first of a list, or null
};

}  // namespace kvq
