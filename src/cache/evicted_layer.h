#pragma once

#include "cache/backend_memory.h"
#include "cache/sequence.h"
#include "cache/slot_moves.h"

#include <array>
#include <span>

namespace kvq {

/// A layer with some of its slots only, written over its own pages. The constructor makes everything that can fail,
/// commit() changes the sequence. For layers whose pages have one sealed format.
///
/// New page j holds slots of old pages j and later, and all remaining ones of old pages up to j are in new pages up to
/// j: whatever has been read may be written over.
class EvictedLayer {
 public:
  /// `slots`: [kv_heads] rising slots that remain; a head whose slots all stay keeps its list. They outlive this.
  EvictedLayer(Sequence& sequence, int32_t layer, std::span<const Vector<int32_t>> slots);
  EvictedLayer(const EvictedLayer&) = delete;
  EvictedLayer& operator=(const EvictedLayer&) = delete;
  ~EvictedLayer();

  /// `staging`: staging_bytes() or more, `scratch`: with a block of scratch_bytes(). Only a device can fail.
  void commit(BackendMemory& staging, Allocator& scratch);
  /// Move the pages of runs with many unused places to smaller ones, where there is memory for these.
  void trim() noexcept;

  /// For lists of up to `longest` pages.
  static uint64_t staging_bytes(const Cache& cache, const Storage& storage, size_t longest) {
    return static_cast<uint64_t>(step_of(cache, storage, longest)) * static_cast<uint64_t>(cache.most_kv_heads()) *
           cache.most_float16_bytes();
  }
  static uint64_t scratch_bytes(const Cache& cache, const Storage& storage, size_t longest);
  /// Most bytes that a plan for such a layer takes, with the positions of its pages, if no page is shared.
  static uint64_t plan_bytes(const Cache& cache, int64_t remaining_slots);

 private:
  struct NewPage {
    Page* page;
    int32_t* positions;  // for the page, if its slots will not be consecutive and it has none
    bool is_reused;      // one of the old list's
  };
  struct List {
    int32_t head;
    std::span<const int32_t> slots;
    Vector<NewPage> pages;
    int32_t written = 0;     // pages
    size_t page = 0;         // of the old list, where reading goes on
    int32_t first_slot = 0;  // of that page
  };
  /// A new page, staged in FP16.
  struct Write {
    List* list;
    int32_t index;
    int32_t count;
    const std::byte* source;
    std::array<int32_t, kPageSlots> positions;
  };

  /// FP16 pages of a head that are staged at once: all that stay FP16 at the end of a list among them.
  static int32_t step_of(const Cache& cache, const Storage& storage, size_t longest) {
    return std::max(pages_at_once(cache, longest), storage.recent);
  }
  void plan(List& list);
  void drop() noexcept;
  int32_t first_newest(const List& list) const {
    return std::max(static_cast<int32_t>(list.pages.size()) - storage_.recent, 0);
  }
  void read(List& list, std::byte* target, Vector<SlotMove>& moves, Vector<Write>& writes);
  void write(std::span<Write> writes, Allocator& scratch);
  void replace(List& list) noexcept;
  void trim_run(int32_t head, PageRun& run) noexcept;

  Sequence& sequence_;
  Cache& cache_;
  const Storage& storage_;
  int32_t layer_;
  int32_t step_ = 1;  // pages of a head that are staged at once
  Vector<List> lists_;
};

}  // namespace kvq
