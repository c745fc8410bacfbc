// Visibility of tokens to queries.
#pragma once

#include "core/window.h"
#include "kernels/attend/units.cuh"
#include "kernels/device/fragments.cuh"
#include "kernels/pages/scores.cuh"

namespace kvq::cuda {

/// Lowest and highest position of the unit's queries.
struct QueryRange {
  int32_t first;
  int32_t last;
};

/// The same, and the first slot that a mask covers.
struct VisibleRange : QueryRange {
  int32_t first_masked;  // may be negative; INT32_MAX: none

  /// The first page with such slots.
  __device__ __forceinline__ int32_t masked_from() const { return first_masked >> 5; }
};

/// A page with the fields that masks need.
__device__ __forceinline__ DevicePage page_of(uint32_t first_position, uint32_t state) {
  return {0, static_cast<int32_t>(first_position), state};
}

/// Whether a row at a position sees a token at another.
__device__ __forceinline__ bool sees(int32_t row, int32_t token, int32_t window) {
  return token <= row && token > newest_hidden(row, window);
}

/// Whether a page has fewer than 32 slots.
__device__ __forceinline__ bool is_short(const uint4& record) { return page_of(record.z, record.w).count() < kSlots; }

/// Whether a page has fewer than 32 slots or positions with gaps.
__device__ __forceinline__ bool is_partial(const uint4& record) {
  return record.w >> FormatCode::kBits != uint32_t{kSlots};
}

/// Whether some query may not see all 32 slots of page `index`.
__device__ __forceinline__ bool needs_mask(const uint4& record, int32_t index, const VisibleRange& queries,
                                           int32_t window) {
  const auto first = static_cast<int32_t>(record.z);
  return index >= queries.masked_from() || is_partial(record) || first + kSlots - 1 > queries.first ||
         (window != 0 && first <= newest_hidden(queries.last, window));
}

/// Whether some query sees a token of page `index`, which must not be empty.
__device__ __forceinline__ bool is_visible(const AttendArguments& arguments, const Unit& unit, const uint4& record,
                                           int32_t index, const VisibleRange& queries) {
  if (index >= queries.masked_from()) return true;
  if (static_cast<int32_t>(record.z) > queries.last) return false;
  if (arguments.window == 0) return true;
  const DevicePage page = page_of(record.z, record.w);
  const int32_t last = position_in_page(arguments, unit, page, index, page.count() - 1);
  return last > newest_hidden(queries.first, arguments.window);
}

/// The first slot of a unit's list that the mask covers, which may be negative; INT32_MAX: there is no mask.
__device__ __forceinline__ int32_t first_masked(const AttendArguments& arguments, const Unit& unit) {
  if (arguments.mask.bits == nullptr) return INT32_MAX;
  if (page_count(arguments, unit) == 0) return 0;
  return list_length(arguments, unit) - arguments.mask.slots;
}
/// The mask's bits of a row.
__device__ __forceinline__ const uint32_t* mask_of_row(const AttendArguments& arguments, const Unit& unit,
                                                       int32_t row) {
  const int64_t query = row_place(arguments, unit, row).query;
  return arguments.mask.bits + query * arguments.mask.words;
}
__device__ __forceinline__ bool has_bit(const uint32_t* bits, int32_t bit) {
  return (__ldg(bits + bit / 32) >> (bit % 32) & 1) != 0;
}

/// A unit's rows, and the first slot that a mask covers.
struct MaskedUnit {
  const AttendArguments& arguments;
  const Unit& unit;
  int32_t rows;
  int32_t first_masked;
};

/// Whether row `row`, at a position, sees slot `slot` of the list, which is at another.
__device__ __forceinline__ bool sees_slot(const MaskedUnit& of, int32_t row, int32_t row_position, int32_t slot,
                                          int32_t position) {
  if (slot < of.first_masked) return sees(row_position, position, of.arguments.window);
  if (position <= newest_hidden(row_position, of.arguments.window)) return false;
  return has_bit(mask_of_row(of.arguments, of.unit, min(row, of.rows - 1)), slot - of.first_masked);
}

/// Masks the scores of tokens of page `index` that a query does not see. Bits first, in a loop: unrolled, it would need
/// registers that the walk has not.
template <int NT>
__device__ __forceinline__ void mask(const MaskedUnit& of, const DevicePage& page, int32_t index,
                                     const int32_t (&row_position)[8 * NT], const Lane& lane, Scores<NT>& scores) {
  int32_t positions[4];
#pragma unroll
  for (int32_t tile = 0; tile < 4; ++tile) {
    const int32_t slot = token_of(lane.g, tile);
    positions[tile] = slot < page.count() ? position_in_page(of.arguments, of.unit, page, index, slot) : 0;
  }
  uint32_t hidden = 0;
#pragma unroll 1
  for (int32_t i = 0; i < 2 * NT; ++i) {
    const int32_t row = 8 * (i / 2) + 2 * lane.t + i % 2;
#pragma unroll
    for (int32_t tile = 0; tile < 4; ++tile) {
      const int32_t slot = token_of(lane.g, tile);
      const bool seen =
          slot < page.count() && sees_slot(of, row, row_position[row], kSlots * index + slot, positions[tile]);
      hidden |= (seen ? 0U : 1U) << (4 * i + tile);
    }
  }
#pragma unroll
  for (int32_t i = 0; i < 2 * NT; ++i) {
#pragma unroll
    for (int32_t tile = 0; tile < 4; ++tile) {
      if ((hidden >> (4 * i + tile) & 1U) != 0) scores[i / 2][tile / 2][2 * (tile % 2) + i % 2] = minus_infinity();
    }
  }
}

}  // namespace kvq::cuda
