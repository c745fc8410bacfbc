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

/// Whether some query may not see all 32 slots.
__device__ __forceinline__ bool needs_mask(const uint4& record, const QueryRange& queries, int32_t window) {
  const auto first = static_cast<int32_t>(record.z);
  return is_partial(record) || first + kSlots - 1 > queries.first ||
         (window != 0 && first <= newest_hidden(queries.last, window));
}

/// Whether some query sees a token of page `index`, which must not be empty.
__device__ __forceinline__ bool is_visible(const AttendArguments& arguments, const Unit& unit, const uint4& record,
                                           int32_t index, const QueryRange& queries) {
  if (static_cast<int32_t>(record.z) > queries.last) return false;
  if (arguments.window == 0) return true;
  const DevicePage page = page_of(record.z, record.w);
  const int32_t last = position_in_page(arguments, unit, page, index, page.count() - 1);
  return last > newest_hidden(queries.first, arguments.window);
}

/// Masks the scores of tokens that a query does not see.
template <int NT>
__device__ __forceinline__ void mask(const AttendArguments& arguments, const Unit& unit, const DevicePage& page,
                                     int32_t index, const int32_t (&row_position)[8 * NT], const Lane& lane,
                                     Scores<NT>& scores) {
#pragma unroll
  for (int32_t tile = 0; tile < 4; ++tile) {
    const int32_t slot = token_of(lane.g, tile);
    const bool held = slot < page.count();
    const int32_t position = held ? position_in_page(arguments, unit, page, index, slot) : 0;
#pragma unroll
    for (int32_t n = 0; n < NT; ++n) {
#pragma unroll
      for (int32_t c = 0; c < 2; ++c) {
        const int32_t of_row = row_position[8 * n + 2 * lane.t + c];
        const bool seen = held && sees(of_row, position, arguments.window);
        if (!seen) scores[n][tile / 2][2 * (tile % 2) + c] = minus_infinity();
      }
    }
  }
}

}  // namespace kvq::cuda
