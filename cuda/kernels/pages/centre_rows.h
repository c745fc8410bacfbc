// Trained centres as attention reads them: rows of halves in the order in which lanes take them as operands of tensor
// cores. Numbers of pairs are those of queries: rotated pairs first, then neighbours.
#pragma once

#include "kernels/pages/records.h"

#include <cstdint>

// Vectors of CUDA, which not everybody who makes rows has.
struct uint2;
struct uint4;

namespace kvq::cuda {

/// Of a layer, in device memory. Null where a side has no centres.
struct CentreRows {
  const uint4* keys;         // [kv_heads][key_rows][row_width / 8]
  const uint4* values;       // [kv_heads][value_centres][row_width / 8], after a Hadamard rotation
  const uint4* slot_turns;   // [turn_blocks][2][2][2][32]
  const uint2* frequencies;  // [row_width / 2]
  const float* own_keys;     // [kv_heads][key_centres][head_dim], before RoPE, in the model's order of channels
  int32_t key_centres;
  // A centre each; of a single one those of the 32 slots, at slot_of_row, turned as slots are.
  int32_t key_rows;
  int32_t value_centres;
  int32_t fast_pairs;   // the first ones: kernels turn their rows slot by slot
  int32_t turn_blocks;  // of 32 pairs
};

KVQ_HOST_DEVICE constexpr int32_t turn_bytes(const CentreRows& rows) { return 4096 * rows.turn_blocks; }
KVQ_HOST_DEVICE constexpr int32_t key_row_bytes(const CentreRows& rows, int32_t width) {
  return 2 * width * rows.key_rows;
}
/// A single centre is read only once.
KVQ_HOST_DEVICE constexpr int32_t value_row_bytes(const CentreRows& rows, int32_t width) {
  return rows.value_centres > 1 ? 2 * width * rows.value_centres : 0;
}

/// What attention is compiled for.
KVQ_HOST_DEVICE constexpr int32_t row_width(int32_t head_dim) {
  if (head_dim == 64) return 64;
  return head_dim <= 128 ? 128 : 256;
}

/// Where the number `which` of a pair of channels is in a row of keys: of each 32 pairs the first numbers, then the
/// second ones.
KVQ_HOST_DEVICE constexpr int32_t key_place(int32_t pair, int32_t which) {
  return 64 * (pair / 32) + 32 * which + pair % 32;
}
/// The same in a row of queries, of which lane t takes all words of a vector.
KVQ_HOST_DEVICE constexpr int32_t query_place(int32_t pair, int32_t which) {
  return 64 * (pair / 32) + 32 * which + 8 * (pair % 8 / 2) + 2 * (pair % 32 / 8) + pair % 2;
}
/// Where a channel is in a row of values: eight channels of outputs that a tile has as rows lie together.
KVQ_HOST_DEVICE constexpr int32_t value_place(int32_t channel) {
  return 8 * (4 * (channel / 32) + channel % 4) + channel % 32 / 4;
}

/// Chunks of eight halves of a row trade places, so that the same chunks of several rows are in different banks.
KVQ_HOST_DEVICE constexpr int32_t row_swizzle(int32_t row) { return row & 7; }

/// The slot whose row of a single centre this is: tiles of tokens follow each other.
KVQ_HOST_DEVICE constexpr int32_t slot_of_row(int32_t row) {
  return 8 * (row % 8 / 2) + 2 * (row % 2) + row / 8 % 2 + 4 * (row / 16);
}

/// Of slot_turns, the cosines of lane 0 for pair `pair`, the next one and those 8 further, of the tiles of tokens
/// 2 · half and the next one: two words of the first pairs, then two of the others. The sines are 32 places behind.
/// Lane (g, t) takes pairs that are 2t further, and the tiles' tokens g.
KVQ_HOST_DEVICE constexpr int32_t slot_turn_place(int32_t pair, int32_t half) { return 64 * (2 * (pair / 16) + half); }

}  // namespace kvq::cuda
