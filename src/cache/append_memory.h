#pragma once

#include "backend/backend.h"

namespace kvq {

/// Pages of one list that an append of up to a page touches: one is sealed, one filled up, one opened.
inline constexpr int32_t kPagesOfOneAppend = 3;

/// Change that an append makes in a head's list. Applied, it holds what was there before.
struct PageChange {
  int32_t head;
  int32_t index;         // in the head's list; its size appends
  int32_t count;         // slots in use afterwards
  Page* page = nullptr;  // replaces or extends the list; null: the page there grows in place
  bool from_reserve = false;
  bool is_sealed = false;              // `page` is the same slots in another format
  bool extends = false;                // `page` was appended to the list
  bool adds_positions = false;         // the page gets `added_positions`
  int32_t* added_positions = nullptr;  // for a page that exists and whose positions are not consecutive
};

/// Run of a head's new pages; replaces the sequence's on commit.
struct StagedRun {
  PageRun* staged;
  PageRun* original;
  int32_t original_used;
};

/// Vectors filled by an append. A sequence keeps some that are large enough for appends of up to a page, so that these
/// allocate nothing.
struct AppendMemory {
  explicit AppendMemory(Allocator& allocator)
      : writes(allocator), changes(allocator), runs(allocator), positions(allocator) {}

  /// Reserve memory for `pages` pages and `list_runs` runs of each list and positions of `tokens` tokens: bytes() then
  /// equals bytes_of() of the same arguments.
  void reserve(int32_t kv_heads, size_t list_runs, int32_t pages, int32_t tokens) {
    const size_t n = size(kv_heads, pages);
    writes.reserve(n);
    changes.reserve(n);
    runs.reserve(size(kv_heads, list_runs));
    positions.reserve(static_cast<size_t>(tokens));
  }
  static uint64_t bytes_of(int32_t kv_heads, size_t list_runs, int32_t pages, int32_t tokens) {
    const auto heads = static_cast<uint64_t>(kv_heads);
    return heads * static_cast<uint64_t>(pages) * (sizeof(PageWrite) + sizeof(PageChange)) +
           heads * list_runs * sizeof(StagedRun) + static_cast<uint64_t>(tokens) * sizeof(int32_t);
  }
  void clear() noexcept {
    writes.clear();
    changes.clear();
    runs.clear();
    positions.clear();
  }
  size_t bytes() const noexcept {
    return writes.capacity() * sizeof(PageWrite) + changes.capacity() * sizeof(PageChange) +
           runs.capacity() * sizeof(StagedRun) + positions.capacity() * sizeof(int32_t);
  }

  Vector<PageWrite> writes;
  Vector<PageChange> changes;
  Vector<StagedRun> runs;  // [kv_heads, runs_of_list()]
  Vector<int32_t> positions;
};

}  // namespace kvq
