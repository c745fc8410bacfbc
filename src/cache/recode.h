#pragma once

#include "cache/backend_memory.h"
#include "cache/sequence.h"
#include "cache/slot_moves.h"

#include <span>

namespace kvq {

/// A layer's pages in the formats of another storage, written page by page. The constructor plans, prepare() makes
/// everything that can fail, commit() changes the sequence.
///
/// A run whose pages no other sequence holds changes as a whole: its records stay, and its data moves to a block of the
/// new size, or, if nobody gives one, stays in its old block. Other pages are made anew.
class RecodedLayer {
 public:
  /// `waits`: the layer waits for scales, so that none of its FP16 pages is sealed.
  RecodedLayer(Sequence& sequence, int32_t layer, const Storage& to, bool waits, Allocator& memory);
  RecodedLayer(const RecodedLayer&) = delete;
  RecodedLayer& operator=(const RecodedLayer&) = delete;
  ~RecodedLayer();

  int64_t changed_pages() const { return changed_; }
  /// Bytes that prepare() allocates, and those that must be free for commit() to leave no block larger than needed.
  uint64_t bytes_to_make() const { return made_bytes_; }
  uint64_t bytes_at_once() const { return at_once_; }
  /// Bytes that the sequence's pages in the layer take afterwards beyond now, without those to make; negative: fewer.
  int64_t growth() const { return growth_; }
  /// Pages of the longest list.
  size_t longest() const { return longest_; }
  /// Bytes of the largest page to read.
  size_t largest_page() const { return largest_; }

  void prepare();
  /// `staging`: staging_bytes() or more, `scratch`: with a block of scratch_bytes().
  void commit(BackendMemory& staging, Allocator& scratch);

  /// Most bytes of a plan for each page that changes.
  static constexpr uint64_t kPlanBytesOfPage = 256;

  /// Memory for the pages that are written in one go, of lists of up to `longest` pages.
  static uint64_t staging_bytes(const Cache& cache, size_t longest) {
    return static_cast<uint64_t>(pages_at_once(cache, longest) * cache.most_kv_heads()) * cache.most_float16_bytes();
  }
  static uint64_t scratch_bytes(const Cache& cache, const Storage& to, size_t longest, size_t largest_page);

 private:
  /// A run that changes as a whole.
  struct RunChange {
    PageRun* run;
    const PageFormat* format;
    int32_t head;
    int32_t first;  // places in the list of its pages that change
    int32_t last;
    std::byte* block = nullptr;  // null: not begun, or done

    size_t bytes() const { return static_cast<size_t>(run->capacity) * format->bytes(); }
    bool is_in_place() const { return block == run->data; }
  };
  struct Write {
    int32_t head;
    int32_t index;
    RunChange* change;  // null: the next page made
  };

  const PageFormat* wanted(int32_t head, int32_t index) const;
  /// Whether a page has to be written anew.
  bool is_changed(int32_t head, int32_t index) const;
  void plan(int32_t head);
  void make_pages(int32_t head);
  RunChange* find(int32_t head, const Page* page);
  void begin(RunChange& change);
  void finish(RunChange& change) noexcept;
  void write(std::span<const Write> writes, BackendMemory& staging, Allocator& scratch);
  template <typename Use>
  void for_each_change(int32_t head, int32_t begin, int32_t end, const Use& use);

  Sequence& sequence_;
  Cache& cache_;
  const Storage& to_;
  int32_t layer_;
  bool waits_;
  Vector<RunChange> runs_;     // head by head, in the order of pages
  Vector<size_t> first_runs_;  // [kv_heads + 1]
  Vector<int32_t> to_make_;    // [kv_heads] pages
  Vector<Page*> made_;         // head by head; taken ones are null
  Vector<size_t> next_made_;   // [kv_heads]
  int64_t changed_ = 0;
  uint64_t made_bytes_ = 0;
  uint64_t at_once_ = 0;
  int64_t growth_ = 0;
  size_t largest_ = 0;
  size_t longest_ = 0;
};

/// What recoding a sequence takes.
struct RecodeNeeds {
  int32_t layers;  // with such pages
  int64_t pages;   // that are written anew
  uint64_t bytes;  // that have to be free
  int64_t growth;  // of what the sequence holds, usually negative
};

/// Throw unless a sequence can be recoded now.
void check_recode(const Sequence& sequence);
RecodeNeeds recode_needs(Sequence& sequence, const Storage& to);
/// Write the pages of a layer anew that are in other formats than the sequence's storage has.
void recode_layer(Sequence& sequence, int32_t layer);
/// Most bytes that this takes beside the pages, of which `pages` are written anew.
uint64_t recode_layer_bytes(const Cache& cache, const Storage& to, size_t longest, size_t largest_page, int64_t pages);
/// Give a sequence another storage: its sealed pages, and those that this one seals, are written in their new formats.
void recode(Sequence& sequence, const Storage& to);

}  // namespace kvq
