// Order of elements within a field of a page on a GPU: kernels read them without bank conflicts and without moving FP16
// values between registers. 16-byte chunks of codes are permuted within a line of 128 bytes, and the middle two of each
// four scales or minima are swapped. Both permutations are their own inverse.
#pragma once

#include "kernels/pages/format_code.h"

namespace kvq::cuda {

KVQ_HOST_DEVICE constexpr int32_t value_lanes(int32_t head_dim) { return side_plane(Side::kValues, 1, head_dim).lanes; }

/// Permutation of the chunks of a row of keys, or of a pair of rows of FP16 keys.
KVQ_HOST_DEVICE inline int32_t key_swizzle(int32_t row) { return (row & 1) | ((row & 2) << 1); }

/// Place of 16-byte chunk `i` of the codes of keys.
KVQ_HOST_DEVICE inline int32_t key_chunk(CodeType code, int32_t i) {
  return i ^ key_swizzle(i >> (code.is_float16() ? 4 : 3));
}

/// Rows of values are permuted if they are whole lines and a power of two of them.
KVQ_HOST_DEVICE inline bool swizzles_values(int32_t head_dim) {
  const int32_t lanes = value_lanes(head_dim);
  return lanes >= 32 && (lanes & (lanes - 1)) == 0;
}

/// Permutation of the chunks of a row of values; one load of a warp covers a row or a group of rows.
KVQ_HOST_DEVICE inline int32_t value_swizzle(CodeType code, int32_t head_dim, int32_t row) {
  if (!swizzles_values(head_dim)) return 0;
  return 2 * (row >> (code.is_float16() ? 2 : (code == CodeType::integer(8) ? 1 : 0)) & 3);
}

/// Place of chunk `i` of the codes of values.
KVQ_HOST_DEVICE inline int32_t value_chunk(CodeType code, int32_t head_dim, int32_t i) {
  return i ^ value_swizzle(code, head_dim, i / (value_lanes(head_dim) / 4));
}

/// Place of scale or minimum `i` in its plane.
KVQ_HOST_DEVICE inline int32_t scale_place(int32_t i) {
  const int32_t within = i & 3;
  return within == 1 || within == 2 ? i ^ 3 : i;
}

/// Place of a slot's gain or centre index, in the order in which attention's lanes take tokens: four per lane.
KVQ_HOST_DEVICE constexpr int32_t slot_place(int32_t slot) {
  return 4 * (2 * (slot / 8) + slot / 2 % 2) + 2 * (slot / 4 % 2) + slot % 2;
}

/// Flips the highest bit of a mean's bytes, which makes them unsigned.
inline constexpr uint8_t kMeanFlip = 0x80;

/// Whether a code's layout satisfies the kernels' assumptions with any number of channels.
constexpr bool fits_kernels(CodeType code) {
  for (int32_t head_dim = 8; head_dim <= kMaxChannels; head_dim += 8) {
    const SidePlaces keys = side_places(Side::kKeys, code, head_dim);
    const SidePlaces values = side_places(Side::kValues, code, head_dim);
    if (keys.codes % (4 * kSlots) != 0 || values.codes % (4 * value_lanes(head_dim)) != 0) return false;  // whole rows
    if (head_dim % 32 != 0) continue;
    const SidePlaces full_keys = full_places(Side::kKeys, code, head_dim);
    const SidePlaces full_values = full_places(Side::kValues, code, head_dim);
    if (full_keys.codes != keys.codes || full_keys.scales != keys.scales || full_keys.bytes != keys.bytes ||
        full_values.codes != values.codes || full_values.scales != values.scales || full_values.bytes != values.bytes) {
      return false;
    }
  }
  return true;
}

}  // namespace kvq::cuda
