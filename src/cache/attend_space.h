// Work space of attention calls.
#pragma once

#include "backend/attention.h"
#include "core/scratch.h"

namespace kvq {

/// Kept from call to call: a call allocates only for a batch larger than all before.
struct AttendSpace {
  AttendSpace(Allocator& allocator, Attention& attention)
      : workspace(attention.make_workspace(allocator)),
        sequences(allocator),
        lists(allocator),
        counts(allocator),
        positions(allocator),
        next(nullptr, Deleter<AttendSpace>(allocator, 0, 0)) {}

  /// Bytes after such a call, the backend's work space included.
  static uint64_t bytes_of(const ExpectedCall& call, int32_t kv_heads, Attention& attention) {
    const uint64_t lists = sizeof(const Page* const*) + sizeof(int32_t);
    const uint64_t of_sequence = sizeof(AttendSequence) + static_cast<uint64_t>(kv_heads) * lists +
                                 static_cast<uint64_t>(call.queries) * sizeof(int32_t);
    const uint64_t entries = call.queries == 0 ? 0 : static_cast<uint64_t>(call.sequences) * of_sequence;
    return sizeof(AttendSpace) + attention.workspace_bytes(call) + entries;
  }

  Owned<Workspace> workspace;
  Vector<AttendSequence> sequences;
  Vector<const Page* const*> lists;
  Vector<int32_t> counts;
  Vector<int32_t> positions;
  Owned<AttendSpace> next;  // while free
};

/// Work spaces, as many as calls have ever run at once. Calls of one thread always get the same one, the last put back,
/// on which a CUDA graph that captures them relies.
class AttendSpaces {
 public:
  /// Makes the first space. Memory comes from `allocator`.
  AttendSpaces(Allocator& allocator, Attention& attention)
      : allocator_(allocator), attention_(attention), spaces_(allocator) {
    spaces_.put_back(make());
  }

  /// Borrows a space for its lifetime.
  class Lease {
   public:
    explicit Lease(AttendSpaces& owner) : owner_(owner), space_(owner.spaces_.take()) {
      if (space_ == nullptr) space_ = owner.make();
    }
    ~Lease() { owner_.spaces_.put_back(std::move(space_)); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    AttendSpace* operator->() const { return space_.get(); }

   private:
    AttendSpaces& owner_;
    Owned<AttendSpace> space_;
  };

 private:
  Owned<AttendSpace> make() { return make_owned<AttendSpace>(allocator_, allocator_, attention_); }

  Allocator& allocator_;
  Attention& attention_;
  Pool<AttendSpace> spaces_;
};

}  // namespace kvq
