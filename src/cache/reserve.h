#pragma once

#include "cache/page_copies.h"
#include "cache/sequence.h"

namespace kvq {

/// How many pages are made ahead for one list of a layer.
struct ReservePlaces {
  /// The list comes to have `pages` pages, the longest one of its layer `longest`.
  ReservePlaces(const Cache& cache, int32_t layer, int32_t pages, int32_t longest);

  int32_t sinks;   // leading final pages that are in FP16 whatever the others' format is
  int32_t finals;  // sinks included
  int32_t ring;    // places of open pages
  int32_t open;    // that get a page, where the list has none yet

  /// Pages of the run that begins with final page `index`: those of its format, as far as a run goes.
  int32_t run_pages(int32_t index) const { return std::min((index < sinks ? sinks : finals) - index, kMaxRunPages); }
};

/// Pages made ahead for one layer of a sequence. Its lists take them instead of new ones, and a device that knows them
/// can append by itself.
///
/// Every page has its place: `finals` holds the page that a list will have at an index in its final format. Pages that
/// are sealed later are open in FP16 first, page i in `open[i % ring]`; a ring of one page more than stay FP16 never
/// opens a page in the memory of one that is being sealed. A shorter ring, for lists that stay shorter, has no place
/// for what comes after it.
class Reserve {
 public:
  /// For `tokens` more tokens. Pages of `old`, which may be null, are used again, but stay its own until commit().
  Reserve(Sequence& sequence, int32_t layer, int32_t tokens, Reserve* old);
  Reserve(const Reserve&) = delete;
  Reserve& operator=(const Reserve&) = delete;
  ~Reserve();

  /// Put copies in the place of shared pages that appending would change, and leave `old` nothing that is used here.
  void commit() noexcept;

  /// The page that is to be page `index` of a list, null if there is none.
  Page* find(int32_t head, int32_t index, const PageFormat* format);
  /// The list has got what find() gave.
  void took(int32_t head, int32_t index, const PageFormat* format) noexcept;
  /// Take a page that a list had at `index`; false if its place is not free or somebody else holds it.
  bool keep(int32_t head, int32_t index, Page* page) noexcept;

  /// Tokens that every list has pages for.
  int32_t room() const;
  /// Valid until the next change.
  ReservedPages view() const;
  /// The pages of one list, null where it has got its page.
  const Vector<Page*>& finals(int32_t head) const { return finals_[static_cast<size_t>(head)]; }
  const Vector<Page*>& open(int32_t head) const { return open_[static_cast<size_t>(head)]; }
  /// Memory of this object without that of pages.
  size_t record_bytes() const;
  /// The same of a new one with so many places in all lists together.
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
  const PageFormat* sealed() const { return cache_.layers[static_cast<size_t>(layer_)].formats.front(); }
  bool ends_float16(int32_t index) const { return sequence_.ends_float16(layer_, index); }
  const PageFormat* final_format(int32_t index) const { return ends_float16(index) ? &cache_.float16 : sealed(); }
  /// Null if a page of this format has no place at `index`.
  Page** place(int32_t head, int32_t index, const PageFormat* format);
  void fill(int32_t head, int32_t pages, Reserve* old);
  void borrow(Page** from, Page** to);
  void give_back() noexcept;
  /// The number of pages that a list can come to have with what there is.
  int32_t limit(int32_t head) const;

  Sequence& sequence_;
  Cache& cache_;
  int32_t layer_;
  int32_t ring_;
  Vector<int32_t> pages_;         // [kv_heads] that each list was to come to have
  Vector<Vector<Page*>> finals_;  // [kv_heads]
  Vector<Vector<Page*>> open_;    // [kv_heads][ring]
  Vector<const Page* const*> final_lists_;
  Vector<int32_t> final_counts_;
  Vector<const Page* const*> open_lists_;
  // Until commit().
  Vector<Borrowed> borrowed_;
  PageCopies copies_;
  Vector<Shared> shared_;  // where the copies belong
};

/// Make room for `tokens` more tokens in every layer; 0 gives back what is left of it.
void reserve(Sequence& sequence, int32_t tokens);

}  // namespace kvq
