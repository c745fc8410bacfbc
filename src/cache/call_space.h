// Memory that calls of appending and attention keep.
#pragma once

#include "backend/attention.h"
#include "core/scratch.h"

namespace kvq {

/// Kept from call to call. Attention allocates only for a batch larger than all before; what appending needs while it
/// runs comes from a block that is made when pages are reserved.
struct CallSpace {
  CallSpace(Allocator& allocator, Attention& attention)
      : workspace(attention.make_workspace(allocator)),
        sequences(allocator),
        lists(allocator),
        counts(allocator),
        positions(allocator),
        scratch(allocator, 0, "cache"),
        next(nullptr, Deleter<CallSpace>(allocator, 0, 0)) {}

  /// Make room for such a batch.
  void reserve(size_t n_sequences, size_t queries, int32_t kv_heads) {
    const size_t n_lists = n_sequences * static_cast<size_t>(kv_heads);
    sequences.reserve(n_sequences);
    lists.reserve(n_lists);
    counts.reserve(n_lists);
    positions.reserve(queries);
  }
  /// Bytes after that of vectors.
  static uint64_t bytes_of(size_t n_sequences, size_t queries, int32_t kv_heads) {
    constexpr uint64_t kOfList = sizeof(const Page* const*) + sizeof(int32_t);
    return n_sequences * (sizeof(AttendSequence) + static_cast<uint64_t>(kv_heads) * kOfList) +
           queries * sizeof(int32_t);
  }

  Owned<Workspace> workspace;
  Vector<AttendSequence> sequences;
  Vector<const Page* const*> lists;
  Vector<int32_t> counts;
  Vector<int32_t> positions;
  Allocator scratch;  // what a call needs while it runs
  size_t scratch_bytes = 0;
  Owned<CallSpace> next;  // while free
};

/// Spaces, as many as calls have ever run at once. Calls of one thread always get the same one, the last put back, on
/// which a CUDA graph that captures them relies.
class CallSpaces {
 public:
  /// Makes the first space. Memory comes from `allocator`.
  CallSpaces(Allocator& allocator, Attention& attention)
      : allocator_(allocator), attention_(attention), spaces_(allocator) {
    spaces_.put_back(make());
  }

  /// Borrows a space for its lifetime.
  class Lease {
   public:
    explicit Lease(CallSpaces& owner) : owner_(owner), space_(owner.spaces_.take()) {
      if (space_ == nullptr) space_ = owner.make();
    }
    ~Lease() { owner_.spaces_.put_back(std::move(space_)); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    CallSpace* operator->() const { return space_.get(); }
    CallSpace& operator*() const { return *space_; }

   private:
    CallSpaces& owner_;
    Owned<CallSpace> space_;
  };

 private:
  Owned<CallSpace> make() { return make_owned<CallSpace>(allocator_, allocator_, attention_); }

  Allocator& allocator_;
  Attention& attention_;
  Pool<CallSpace> spaces_;
};

}  // namespace kvq
