#pragma once

#include "formats/page_format.h"

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace kvq {

struct PageRun;

/// Up to 32 slots of one KV head of one layer: the unit of encoding, sharing and rollback. The data is in the backend's
/// memory, laid out by its PageFormat; this record is on the host.
struct Page {
  std::byte* data = nullptr;
  int32_t* positions = nullptr;  // `[32]` original positions, or null: first_position + slot
  PageRun* run = nullptr;        // storage of the record and the data
  int32_t first_position = 0;
  int32_t count = 0;                   // slots in use
  std::atomic<int32_t> references{1};  // a page with more than one holder is immutable

  int32_t position(int32_t slot) const { return positions != nullptr ? positions[slot] : first_position + slot; }
  int32_t last_position() const { return position(count - 1); }
  /// Whether the slots are not consecutive positions. Positions of tokens of a step may fall and repeat.
  bool has_gaps() const {
    if (positions == nullptr) return false;
    for (int32_t slot = 1; slot < count; ++slot) {
      if (positions[slot] != first_position + slot) return true;
    }
    return false;
  }
  inline const PageFormat* format() const;  // owned by the cache
  bool is_float16() const { return format()->is_float16(); }
  bool is_shared() const { return references.load(std::memory_order_acquire) > 1; }
};

/// Contiguous pages of one head and format, so that reading a head's list is reading a stream: on CPUs a factor of two
/// or more faster than pages scattered by the allocator. Filled front to back, freed as a whole.
struct PageRun {
  const PageFormat* format = nullptr;
  std::byte* data = nullptr;
  int32_t capacity = 0;
  int32_t used = 0;
  std::atomic<int32_t> references{1};  // its pages, and the list that still fills it
  uint32_t slack = 0;                  // bytes of data beyond the last page, which had larger ones before

  Page* pages() { return reinterpret_cast<Page*>(this + 1); }
  static constexpr size_t bytes_for(int32_t capacity) {
    return sizeof(PageRun) + static_cast<size_t>(capacity) * sizeof(Page);
  }
  size_t record_bytes() const { return bytes_for(capacity); }
  size_t data_bytes() const { return static_cast<size_t>(capacity) * format->bytes() + slack; }
};
static_assert(sizeof(PageRun) % alignof(Page) == 0);

/// Kept out of the record, which is 40 bytes: with pages of 1 bit and 1 KB every eight of them are 0.8 %.
const PageFormat* Page::format() const { return run->format; }
static_assert(sizeof(void*) != 8 || sizeof(Page) == 40);

/// Limit of a run for pages needed now: few allocations, each of a few hundred kilobytes.
inline constexpr int32_t kMaxRunPages = 256;
/// Limit of a run for expected pages: enough to stream, little to waste.
inline constexpr int32_t kMaxSparePages = 32;

}  // namespace kvq
