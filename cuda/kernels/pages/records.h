// Page tables in device memory.
#pragma once

#include "formats/layer_scales.h"
#include "kernels/pages/order.h"

#include <cstdint>

namespace kvq::cuda {

/// One entry of a head's page table.
struct alignas(16) DevicePage {
  uint64_t data;
  int32_t first_position;
  uint32_t state;  // FormatCode, kCountBits of the count, then whether positions have gaps

  static constexpr uint32_t kCountBits = 7;
  static constexpr uint32_t kGapsBit = FormatCode::kBits + kCountBits;
  static_assert(kGapsBit == 31);

  KVQ_HOST_DEVICE static constexpr uint32_t state_of(uint32_t format, int32_t count, bool has_positions) {
    return format | static_cast<uint32_t>(count) << FormatCode::kBits | (has_positions ? 1U << kGapsBit : 0U);
  }

  KVQ_HOST_DEVICE constexpr uint32_t format() const { return state & FormatCode::kMask; }
  KVQ_HOST_DEVICE constexpr int32_t count() const {
    return static_cast<int32_t>(state >> FormatCode::kBits & ((1U << kCountBits) - 1U));
  }
  /// Positions are not consecutive; see SequenceView::positions.
  KVQ_HOST_DEVICE constexpr bool has_positions() const { return state >> kGapsBit != 0; }
};
static_assert(sizeof(DevicePage) == 16);

/// State of one head's list. Attention and device-side appending read only this, so graphs can replay them while a
/// sequence grows.
struct alignas(16) HeadState {
  int32_t pages;          // in use
  int32_t length;         // tokens of the layer
  int32_t next_position;  // position of the next token, if consecutive
  int32_t room;           // tokens for which pages are reserved
};
static_assert(sizeof(HeadState) == 16);

/// Page table of one layer of one sequence.
struct SequenceView {
  DevicePage* pages;   // [kv_heads][capacity]
  HeadState* heads;    // [kv_heads]
  int32_t* positions;  // [kv_heads][capacity][32] for pages that have_positions, or null
  int32_t capacity;
  LayerScales scales{};  // of what the pages hold
};

/// Pages reserved for one layer of one sequence.
struct ReserveView {
  uint64_t* finals;             // [kv_heads][capacity] pages for final formats, by place in the list
  uint64_t* open;               // [kv_heads][ring] FP16 pages: page i is open in open[i % ring]
  const int32_t* final_counts;  // [kv_heads]
  int32_t capacity;
  int32_t ring;
  int32_t sink;    // leading pages that stay FP16
  int32_t recent;  // newest pages that stay FP16
  int32_t sealed;  // FormatCode of the others
  int32_t window;  // of the layer, as of newest_hidden()
  int32_t step;    // most tokens of an append or a step
};

}  // namespace kvq::cuda
