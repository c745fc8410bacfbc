#pragma once

#include "formats/page_format.h"

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace kvq {

/// Up to 32 slots of one KV head of one layer: the unit of encoding, sharing and rollback.
/// Its data lives where the backend computes and is laid out as its PageFormat says; this record lives on the host.
struct Page {
  std::byte* data = nullptr;
  const PageFormat* format = nullptr;  // owned by the cache
  int32_t* positions = nullptr;        // `[32]` original positions, or null: first_position + slot
  int32_t first_position = 0;
  int32_t count = 0;                   // slots in use
  std::atomic<int32_t> references{1};  // a page with more than one holder is never changed

  int32_t position(int32_t slot) const { return positions != nullptr ? positions[slot] : first_position + slot; }
  int32_t last_position() const { return position(count - 1); }
  bool is_float16() const { return format->is_float16(); }
  bool is_shared() const { return references.load(std::memory_order_acquire) > 1; }
};

}  // namespace kvq
