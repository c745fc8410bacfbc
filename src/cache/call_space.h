// Memory that calls of appending and attention keep.
#pragma once

#include "backend/attention.h"
#include "core/scratch.h"

#include <algorithm>
#include <array>

namespace kvq {

/// Calls of appending and attention to come.
struct ExpectedBatch {
  int32_t sequences = 0;
  int64_t tokens = 0;   // and queries, of all sequences together
  int32_t queries = 0;  // of the sequence that has most
  int32_t pages = 0;    // of the longest list

  /// Appends of up to a page, and one query, of each of so many sequences.
  static ExpectedBatch of_pages(int32_t sequences, int32_t pages) {
    return {sequences, int64_t{sequences} * kPageSlots, 1, pages};
  }
  bool covers(const ExpectedBatch& other) const {
    return sequences >= other.sequences && tokens >= other.tokens && queries >= other.queries && pages >= other.pages;
  }
  int64_t all_queries() const { return std::min(tokens, int64_t{sequences} * queries); }
};

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
    const size_t n_lists = size(n_sequences, kv_heads);
    sequences.reserve(n_sequences);
    lists.reserve(n_lists);
    counts.reserve(n_lists);
    positions.reserve(queries);
  }
  /// Bytes after that of vectors.
  static uint64_t bytes_of(uint64_t n_sequences, uint64_t queries, int32_t kv_heads) {
    constexpr uint64_t kOfList = sizeof(const Page* const*) + sizeof(int32_t);
    return n_sequences * (sizeof(AttendSequence) + static_cast<uint64_t>(kv_heads) * kOfList) +
           queries * sizeof(int32_t);
  }

  /// Whether room has been made for such calls.
  bool holds(const ExpectedBatch& batch) const {
    return std::ranges::any_of(made_for_, [&batch](const ExpectedBatch& each) { return each.covers(batch); });
  }
  /// Calls for which room has been made, to make it again: formats that are new to the cache need more.
  std::array<ExpectedBatch, 4> forget_rooms() noexcept { return std::exchange(made_for_, {}); }
  void made_room(const ExpectedBatch& batch) noexcept {
    // In place of those that it covers, or else of the oldest.
    ExpectedBatch* place =
        std::ranges::find_if(made_for_, [&](const ExpectedBatch& each) { return batch.covers(each); });
    if (place == made_for_.end()) place = std::shift_left(made_for_.begin(), made_for_.end(), 1);
    *place = batch;
  }

  Owned<Workspace> workspace;
  Vector<AttendSequence> sequences;
  Vector<const Page* const*> lists;
  Vector<int32_t> counts;
  Vector<int32_t> positions;
  Allocator scratch;  // what a call needs while it runs
  uint64_t scratch_bytes = 0;
  Owned<CallSpace> next;  // while free

 private:
  std::array<ExpectedBatch, 4> made_for_{};
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

  /// Calls `use` with every space that no call uses now. What it throws leaves the spaces in order.
  template <typename Use>
  void for_each_free(const Use& use) {
    Vector<Owned<CallSpace>> taken(allocator_);
    const auto return_all = [&]() noexcept {
      for (; !taken.empty(); taken.pop_back()) spaces_.put_back(std::move(taken.back()));
    };
    try {
      for (Owned<CallSpace> each = spaces_.take(); each != nullptr; each = spaces_.take()) {
        CallSpace& space = *each;
        try {
          taken.push_back(std::move(each));
        } catch (...) {
          spaces_.put_back(std::move(each));
          throw;
        }
        use(space);
      }
    } catch (...) {
      return_all();
      throw;
    }
    return_all();
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
