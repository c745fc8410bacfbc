#pragma once

#include "cache/page_copies.h"
#include "cache/sequence.h"

namespace kvq {

/// Numbers of preallocated pages for one list of a layer.
struct ReservePlaces {
  /// The list will have `pages` pages, the longest one of its layer `longest`.
  ReservePlaces(const Cache& cache, int32_t layer, int32_t pages, int32_t longest);

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
/// that is being sealed. A shorter ring, for shorter lists, has no place for later pages.
class Reserve {
 public:
  /// Preallocates for `tokens` more tokens. Pages of `old`, which may be null, are reused, but stay its own until
  /// commit().
  Reserve(Sequence& sequence, int32_t layer, int32_t tokens, Reserve* old, Allocator& scratch);
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

  /// Tokens with pages in every list.
  int32_t room() const;
  /// Valid until the next change.
  ReservedPages view() const;
  /// Pages of one list, null where taken.
  const Vector<Page*>& finals(int32_t head) const { return finals_[static_cast<size_t>(head)]; }
  const Vector<Page*>& open(int32_t head) const { return open_[static_cast<size_t>(head)]; }
  /// Bytes of this object without pages.
  size_t record_bytes() const;
  /// The same for a new object with these places in all lists together.
  static size_t record_bytes(int32_t kv_heads, size_t places);

 private:
  struct Borrowed {
    Page** theirs;
    Page** ours;
  };
  struct Shared {
    int32_t head;
    int32_t index;
  };

  int32_t kv_heads() const { return cache_.kv_heads; }
  const PageFormat* sealed() const { return cache_.layer_at(layer_).formats.front(); }
  bool ends_float16(int32_t index) const { return sequence_.ends_float16(layer_, index); }
  const PageFormat* final_format(int32_t index) const { return ends_float16(index) ? &cache_.float16 : sealed(); }
  /// Place of a page of this format at `index`, or null.
  Page** place(int32_t head, int32_t index, const PageFormat* format);
  void fill(int32_t head, int32_t pages, Reserve* old, Allocator& scratch);
  void borrow(Page** from, Page** to);
  void give_back() noexcept;
  /// Number of pages that a list can reach with this reserve.
  int32_t limit(int32_t head) const;

  Sequence& sequence_;
  Cache& cache_;
  int32_t layer_;
  int32_t ring_;
  Vector<int32_t> pages_;         // [kv_heads] planned for each list
  Vector<Vector<Page*>> finals_;  // [kv_heads]
  Vector<Vector<Page*>> open_;    // [kv_heads][ring]
  Vector<const Page* const*> final_lists_;
  Vector<int32_t> final_counts_;
  Vector<const Page* const*> open_lists_;
  // Until commit().
  Vector<Borrowed> borrowed_;
  PageCopies copies_;
  Vector<Shared> shared_;  // targets of the copies
};

/// Make room for what such calls need while they run, attention of `queries` queries of each sequence to lists of
/// `pages` pages included. On a GPU, memory of the device is not part of it.
void make_call_room(Cache& cache, const ExpectedBatch& batch, int32_t queries, int32_t pages);

/// Preallocate pages for `tokens` more tokens in every layer; 0 releases the rest.
void reserve(Sequence& sequence, int32_t tokens);

}  // namespace kvq
