#pragma once

#include "cache/observations.h"
#include "cache/page_copies.h"
#include "cache/sequence.h"

namespace kvq {

/// Numbers of preallocated pages for one list of a layer.
struct ReservePlaces {
  /// The list will have `pages` pages. `forgets`: the layer frees old ones, so that places of others move up.
  ReservePlaces(const Storage& storage, int32_t layer, bool forgets, int32_t pages, int32_t ring);
  /// Places of open pages, where the longest list of a layer will have `longest` pages and a step opens `opened` pages.
  static int32_t ring_of(const Storage& storage, int32_t longest, int32_t opened = 1) {
    return std::min(storage.recent + opened, longest);
  }

  int32_t sinks;   // leading final pages that stay FP16
  int32_t finals;  // sinks included
  int32_t ring;    // places of open pages
  int32_t open;    // that need a page

  /// Pages of the run that begins with final page `index`: all of its format, at most a run's length.
  int32_t run_pages(int32_t index) const { return std::min((index < sinks ? sinks : finals) - index, kMaxRunPages); }
};

/// Preallocated pages for one layer of a sequence. Its lists take them instead of new ones, and a device that knows
/// them can append by itself.
///
/// Every page has its place: `finals` holds a list's page of an index in its final format. A page to be sealed is open
/// in FP16 first, page i in `open[i % ring]`; a ring of one page more than stay FP16 never reuses the memory of a page
/// that is being sealed. A shorter ring, for shorter lists, has no place for later pages. A longer one keeps the FP16
/// originals of the pages that a step seals.
class Reserve {
 public:
  /// Preallocates for `tokens` more tokens and steps that open `opened` pages. Pages of `old`, which may be null, are
  /// reused, but stay its own until commit().
  Reserve(Sequence& sequence, int32_t layer, int32_t tokens, int32_t opened, Reserve* old, Allocator& scratch);
  Reserve(const Reserve&) = delete;
  Reserve& operator=(const Reserve&) = delete;
  ~Reserve();

  /// Replace shared pages that appending would change by copies, and take the reused pages from `old`.
  void commit() noexcept;

  /// Preallocated page `index` of a list, or null.
  Page* find(int32_t head, int32_t index, const PageFormat* format);
  /// Mark the page from find() as taken by its list.
  void took(int32_t head, int32_t index, const PageFormat* format) noexcept;
  /// Take back a list's page `index`; false if its place is occupied or the page has another holder.
  bool keep(int32_t head, int32_t index, Page* page) noexcept;
  /// The same for an FP16 page that has been sealed: original() finds it until its place is used for another page.
  bool keep_original(int32_t head, int32_t index, Page* page) noexcept;
  /// FP16 original of a list's sealed page `index`, or null. Its slots have to be counted anew.
  Page* original(int32_t head, int32_t index);
  /// Pages from `first` on have left a list, which has not moved the others up yet: places follow, and get the pages.
  void drop(int32_t head, int32_t first, std::span<Page* const> pages) noexcept;
  /// Forget originals and what holds() knows: lists have changed otherwise than by appends.
  void forget() noexcept;
  /// Whether every list has pages for `tokens` more, and the originals of those that a step of so many seals.
  bool holds(int32_t tokens);

  int32_t ring() const { return ring_; }
  /// Pages planned for the longest list.
  int32_t longest() const { return longest_; }
  /// Tokens with pages in every list: without bound where a list frees as many pages as it takes.
  int32_t room() const;
  int32_t room_without_freeing() const;
  /// Most tokens of a step, or of an append, that this counts on.
  int32_t step_tokens() const { return opened_ * kPageSlots; }
  /// Valid until the next change.
  ReservedPages view() const;
  /// Pages of one list, null where taken.
  const Vector<Page*>& finals(int32_t head) const { return finals_[static_cast<size_t>(head)]; }
  const Vector<Page*>& open(int32_t head) const { return open_[static_cast<size_t>(head)]; }
  /// Bytes of this object without pages.
  uint64_t record_bytes() const;
  /// The same for a new object with so many final pages in all lists together.
  static uint64_t record_bytes(int32_t kv_heads, uint64_t finals, int32_t ring);

 private:
  struct Borrowed {
    Page** theirs;
    Page** ours;
  };
  struct Shared {
    int32_t head;
    int32_t index;
  };

  int32_t kv_heads() const { return cache_.layer(layer_).kv_heads; }
  bool forgets() const { return cache_.layer(layer_).window != 0; }
  const PageFormat* sealed() const { return sequence_.storage->layer_at(layer_).formats.front(); }
  bool ends_float16(int32_t index) const { return sequence_.ends_float16(layer_, index); }
  const PageFormat* final_format(int32_t index) const {
    return ends_float16(index) ? cache_.layer(layer_).float16 : sealed();
  }
  /// Place of a page of this format at `index`, or null.
  Page** place(int32_t head, int32_t index, const PageFormat* format);
  bool is_open(int32_t head, Page* const* place) const {
    const Vector<Page*>& open = open_[static_cast<size_t>(head)];
    return place >= open.data() && place < open.data() + open.size();
  }
  int32_t& original_at(int32_t head, int32_t index) {
    return originals_[static_cast<size_t>(head) * static_cast<size_t>(ring_) + static_cast<size_t>(index % ring_)];
  }
  void fill(int32_t head, int32_t pages, Reserve* old, Allocator& scratch);
  void borrow(Page** from, Page** to);
  void give_back() noexcept;
  /// Whether a newer open page of the list returns to the place in the ring that page `index` has, too.
  bool is_place_of_newer(int32_t head, int32_t index) const;
  /// Number of pages that a list can reach with this reserve.
  int32_t limit(int32_t head) const;
  /// Tokens with pages in a list that frees none.
  int64_t room_of(int32_t head) const;
  /// Whether the list frees pages before it needs others.
  bool is_endless(int32_t head) const;

  Sequence& sequence_;
  Cache& cache_;
  int32_t layer_;
  int32_t opened_;
  int32_t ring_;
  int32_t longest_;               // planned pages of the longest list
  int64_t assured_ = 0;           // length of the layer up to which all lists are known to have pages
  Vector<int32_t> pages_;         // [kv_heads] planned for each list
  Vector<Vector<Page*>> finals_;  // [kv_heads]
  Vector<Vector<Page*>> open_;    // [kv_heads][ring]
  Vector<const Page* const*> final_lists_;
  Vector<int32_t> final_counts_;
  Vector<const Page* const*> open_lists_;
  Vector<int32_t> originals_;  // [kv_heads][ring] index of the page whose original waits there, or −1
  // Until commit().
  Vector<Borrowed> borrowed_;
  PageCopies copies_;
  Vector<Shared> shared_;  // targets of the copies
};

/// Make room for what such calls need while they run; nothing of `space.scratch` is in use. On a GPU, memory of the
/// device is not part of it.
void make_call_room(Cache& cache, CallSpace& space, const ExpectedBatch& batch);

/// Make it again for what the formats of all policies in the cache need.
void make_call_rooms_again(Cache& cache);

/// Counts a sequence with preallocated pages, unless it had some or they cannot be made.
class CountedReserve {
 public:
  explicit CountedReserve(const Sequence& sequence) : cache_(sequence.cache), counts_(sequence.reserves.empty()) {
    now_ = counts_ ? cache_.reserved_sequences.fetch_add(1) + 1 : cache_.reserved_sequences.load();
  }
  CountedReserve(const CountedReserve&) = delete;
  CountedReserve& operator=(const CountedReserve&) = delete;
  ~CountedReserve() {
    if (counts_) cache_.reserved_sequences.fetch_sub(1);
  }
  void keep() noexcept { counts_ = false; }
  int32_t now() const { return now_; }

 private:
  Cache& cache_;
  bool counts_;
  int32_t now_;
};

/// Throw unless pages for `tokens` more tokens can be preallocated; `argument` is their name in messages.
void check_reserve(const Sequence& sequence, int32_t tokens, const char* argument);

/// Everything that preallocating pages for a sequence needs, made so that the commit changes the sequence at once.
class PreparedReserve {
 public:
  /// For `tokens` more tokens in every layer, and steps that open `opened` pages of a list.
  PreparedReserve(Sequence& sequence, int32_t tokens, int32_t opened, Allocator& scratch);
  /// Only a GPU's copy can fail.
  void commit();
  /// Slots of each head whose attention there will be memory for, if the policy sums it up.
  int32_t observed_slots() const { return observed_ ? observed_->slots : 0; }

 private:
  Sequence& sequence_;
  std::optional<Observations::Room> observed_;
  Vector<Owned<Reserve>> made_;
  Vector<Sequence::PageList> lists_;
};

/// Longest list of any layer with `tokens` more tokens in steps of up to `step`, in pages.
int32_t longest_after(const Sequence& sequence, int32_t tokens, int32_t step = kPageSlots);

/// Release the preallocated pages that are left.
void release_reserve(Sequence& sequence);

/// Preallocate pages for `tokens` more tokens in every layer; 0 releases the rest. Finds scales, too.
void reserve(Sequence& sequence, int32_t tokens);

}  // namespace kvq
