// What calls of attention work in.
#pragma once

#include "backend/attention.h"
#include "core/scratch.h"

namespace kvq {

/// Kept from call to call, so that these allocate nothing once a batch as large has been seen.
struct AttendSpace {
  AttendSpace(Allocator& allocator, Attention& attention)
      : workspace(attention.make_workspace(allocator)),
        sequences(allocator),
        lists(allocator),
        counts(allocator),
        positions(allocator),
        next(nullptr, Deleter<AttendSpace>(allocator, 0, 0)) {}

  /// Of one in which such a call was made, its work space included.
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
  Owned<AttendSpace> next;  // while nobody has it
};

/// As many as calls have ever come at once. Calls of one thread always have the same one, which a CUDA graph that
/// records them relies on: it was put back last.
class AttendSpaces {
 public:
  /// The first one is made at once. Memory comes from `allocator`.
  AttendSpaces(Allocator& allocator, Attention& attention)
      : allocator_(allocator), attention_(attention), spaces_(allocator) {
    spaces_.put_back(make());
  }

  /// One of them, for as long as this lives.
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
