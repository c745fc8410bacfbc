// Trained centres as attention reads them: FP16 rows in the order of tensor-core operands. Pairs are numbered as in
// queries: RoPE pairs first, then neighbours.
#pragma once

#include "kernels/pages/records.h"

#include <cstdint>

// Declares CUDA's vector types for includers without the CUDA headers.
struct uint2;
struct uint4;

namespace kvq::cuda {

/// Rows of a layer, in device memory. Null where a side has no centres.
struct CentreRows {
  const uint4* keys;            // [kv_heads][key_rows][row_width / 8]
  const uint4* values;          // [kv_heads][value_centres][row_width / 8], Hadamard-rotated
  const uint4* slot_rotations;  // [rotation_blocks][2][2][2][32]
  const uint2* frequencies;     // [row_width / 2]
  const float* own_keys;        // [kv_heads][key_centres][head_dim], before RoPE, in the model's channel order
  int32_t key_centres;
  // One row per centre; a single centre has 32 rows, rotated to each slot and stored at slot_of_row.
  int32_t key_rows;
  int32_t value_centres;
  int32_t fast_pairs;       // leading pairs, which kernels rotate slot by slot
  int32_t rotation_blocks;  // blocks of 32 pairs
};

KVQ_HOST_DEVICE constexpr int32_t rotation_bytes(const CentreRows& rows) { return 4096 * rows.rotation_blocks; }
KVQ_HOST_DEVICE constexpr int32_t key_row_bytes(const CentreRows& rows, int32_t width) {
  return 2 * width * rows.key_rows;
}
/// Bytes of value rows in shared memory; a single centre is read only once, from global memory.
KVQ_HOST_DEVICE constexpr int32_t value_row_bytes(const CentreRows& rows, int32_t width) {
  return rows.value_centres > 1 ? 2 * width * rows.value_centres : 0;
}

/// Row width that attention is compiled for.
KVQ_HOST_DEVICE constexpr int32_t row_width(int32_t head_dim) {
  if (head_dim == 64) return 64;
  return head_dim <= 128 ? 128 : 256;
}

/// Place of channel `which` of a pair in a row of keys: each 32 pairs store their first channels, then the second ones.
KVQ_HOST_DEVICE constexpr int32_t key_place(int32_t pair, int32_t which) {
  return 64 * (pair / 32) + 32 * which + pair % 32;
}
/// Place of channel `which` of a pair in a row of queries, where lane t takes whole vectors.
KVQ_HOST_DEVICE constexpr int32_t query_place(int32_t pair, int32_t which) {
  return 64 * (pair / 32) + 32 * which + 8 * (pair % 8 / 2) + 2 * (pair % 32 / 8) + pair % 2;
}
/// Place of a channel in a row of values, where the eight channels of a tile's rows are adjacent.
KVQ_HOST_DEVICE constexpr int32_t value_place(int32_t channel) {
  return 8 * (4 * (channel / 32) + channel % 4) + channel % 32 / 4;
}

/// Permutation of a row's chunks of eight FP16 values that puts equal chunks of different rows in different banks.
KVQ_HOST_DEVICE constexpr int32_t row_swizzle(int32_t row) { return row & 7; }

/// Slot of a single centre's row; tiles of tokens follow each other.
KVQ_HOST_DEVICE constexpr int32_t slot_of_row(int32_t row) {
  return 8 * (row % 8 / 2) + 2 * (row % 2) + row / 8 % 2 + 4 * (row / 16);
}

/// Place in slot_rotations of lane 0's cosines for pairs `pair`, pair + 1 and those 8 further, of token tiles 2 · half
/// and 2 · half + 1: two words of the first pairs, then two of the others. Sines are 32 places behind. Lane (g, t)
/// takes pairs 2t further and token g of each tile.
KVQ_HOST_DEVICE constexpr int32_t slot_rotation_place(int32_t pair, int32_t half) {
  return 64 * (2 * (pair / 16) + half);
}

}  // namespace kvq::cuda
