// Trained centres of gain–shape pages. Rows of the centres of keys are first operands of products like FP16 keys;
// instead of rotating them to their page, the kernel rotates the queries back by the page's first position. Pairs that
// rotate fast within a page are also rotated slot by slot. Rows of the centres of values are first operands like FP16
// values, for weights without gains; a single centre is multiplied by the total weight of its tokens at the end.
#pragma once

#include "kernels/attend/queries.cuh"
#include "kernels/attend/units.cuh"
#include "kernels/device/copies.cuh"
#include "kernels/pages/layout.cuh"
#include "kernels/pages/outputs.cuh"
#include "kernels/pages/query_fragments.cuh"
#include "kernels/pages/scores.cuh"
#include "kernels/pages/softmax.cuh"

namespace kvq::cuda {

/// Rotates two pairs of channels in FP16.
__device__ __forceinline__ void rotate_two(uint32_t x, uint32_t y, uint32_t cosine, uint32_t sine, uint32_t& first,
                                           uint32_t& second) {
  const uint32_t rotated = multiply_add(x, cosine, negated(multiply(y, sine)));
  second = multiply_add(x, sine, multiply(y, cosine));
  first = rotated;
}

/// Cosine and sine of a position's angle; `frequency` is a fraction of a revolution in units of 2^-64.
__device__ __forceinline__ float2 rotation_at(const uint2& frequency, int32_t position) {
  const auto at = static_cast<uint32_t>(position);
  const uint32_t rotation = at * frequency.y + __umulhi(at, frequency.x);
  const float angle = static_cast<float>(static_cast<int32_t>(rotation)) * 1.4629180792671596e-9F;  // 2π / 2^32
  return {__cosf(angle), __sinf(angle)};
}

/// Consecutive places of a block's centre data in shared memory.
template <typename G>
struct CentreMemory {
  uint32_t slot_rotations;
  uint32_t keys;
  uint32_t values;

  __device__ __forceinline__ CentreMemory(const Block<G>& block) {
    const CentreRows& rows = block.arguments.centres;
    slot_rotations = shared_address(&block.shared) + static_cast<uint32_t>(kCentreRowsAt<G>);
    keys = slot_rotations + (G::kCentres ? static_cast<uint32_t>(rotation_bytes(rows)) : 0U);
    values = keys + static_cast<uint32_t>(key_row_bytes(rows, G::kWidth));
  }
};

/// Starts the block's copies of a head's centres, with all threads. They are visible after each thread has waited for
/// its copies and a barrier.
template <typename G>
__device__ __forceinline__ void load_centres(const Block<G>& block, int32_t head) {
  const CentreRows& rows = block.arguments.centres;
  const CentreMemory<G> memory(block);
  const auto copy = [](uint32_t to, const void* from, int32_t bytes) {
    for (int32_t i = 16 * static_cast<int32_t>(threadIdx.x); i < bytes; i += 16 * static_cast<int32_t>(blockDim.x)) {
      copy_chunk(to + static_cast<uint32_t>(i), static_cast<const uint8_t*>(from) + i);
    }
  };
  if (rows.key_rows > 0) {
    copy(shared_address(shared_centres(block).frequencies), rows.frequencies, 4 * G::kWidth);
    copy(memory.slot_rotations, rows.slot_rotations, rotation_bytes(rows));
  }
  if constexpr (!G::kFarCentres) {
    copy(memory.keys, rows.keys + head * rows.key_rows * (G::kWidth / 8), key_row_bytes(rows, G::kWidth));
    copy(memory.values, rows.values + head * rows.value_centres * (G::kWidth / 8), value_row_bytes(rows, G::kWidth));
  }
}

/// Stores the rotation of a page's first position for the warp.
template <typename G>
__device__ __forceinline__ void put_rotations(const Block<G>& block, int32_t position, int32_t buffer) {
  auto& shared = shared_centres(block);
  const int32_t lane = opaque(block.lane.index);
  __half* to = shared.rotations[block.lane.warp][buffer] + 16 * (lane % 8 / 2) + 2 * (lane / 8) + lane % 2;
#pragma unroll
  for (int32_t i = 0; i < G::kWidth / 64; ++i) {
    const float2 rotation = rotation_at(shared.frequencies[lane + 32 * i], position);
    to[64 * i] = __float2half_rn(rotation.x);
    to[64 * i + 8] = __float2half_rn(rotation.y);
  }
}

/// A lane's words of the queries' 32 pairs of block m, rotated back by the page's first position.
template <typename G>
struct RotatedQueries {
  uint32_t first[G::kTiles][4];
  uint32_t second[G::kTiles][4];

  __device__ __forceinline__ RotatedQueries(const Block<G>& block, const Lane& lane, int32_t buffer, int32_t m) {
    const auto& shared = shared_centres(block);
    const auto* rotation = reinterpret_cast<const uint4*>(shared.rotations[lane.warp][buffer] + 64 * m + 16 * lane.t);
    uint32_t cosine[4];
    uint32_t sine[4];
    to_array(rotation[0], cosine);
    to_array(rotation[1], sine);
#pragma unroll
    for (int32_t n = 0; n < G::kTiles; ++n) {
      const auto* row = reinterpret_cast<const uint4*>(shared.queries[8 * n + lane.g] + 64 * m + 8 * lane.t);
      uint32_t x[4];
      uint32_t y[4];
      to_array(row[0], x);
      to_array(row[4], y);
#pragma unroll
      for (int32_t w = 0; w < 4; ++w) rotate_two(x[w], y[w], cosine[w], negated(sine[w]), first[n][w], second[n][w]);
    }
  }
};

/// Centre rows of a page's tokens as first operands; channels are columns for keys and rows for values.
template <typename G, Side kSide>
class CentreBlocks {
 public:
  /// `numbers`: centre indices, one byte per row: the lane's own rows if kFarCentres, otherwise the rows whose
  /// addresses it supplies.
  __device__ __forceinline__ CentreBlocks(const Lane& lane, uint32_t near, const uint4* far, uint32_t numbers)
      : far_(reinterpret_cast<const uint32_t*>(far) + lane.t), numbers_(numbers) {
    if constexpr (!G::kFarCentres) {
      const uint32_t eighth = static_cast<uint32_t>(lane.index) >> 3U;
      const uint32_t tile = kSide == Side::kKeys ? eighth & 1U : eighth >> 1U;
      const uint32_t chunk = kSide == Side::kKeys ? eighth >> 1U : eighth & 1U;
#pragma unroll
      for (int32_t half = 0; half < 2; ++half) {
        // Rows of a single centre follow the order in which lanes supply addresses.
        const uint32_t number = G::kCentres
                                    ? number_of(half, tile)
                                    : static_cast<uint32_t>(16 * half) + (static_cast<uint32_t>(lane.index) & 15U);
        near_[half] = near + 16 * (number * kChunks + ((number & 7U) ^ chunk));
      }
    }
  }
  /// Which of a lane's tokens the indices belong to.
  __device__ __forceinline__ static int32_t place(const Lane& lane) { return G::kFarCentres ? lane.g : lane.index & 7; }

  /// Loads two chunks from an even one on, for token tiles 2 · half and 2 · half + 1.
  __device__ __forceinline__ void load(uint32_t chunk, int32_t half, uint32_t (&to)[4]) const {
    if constexpr (!G::kFarCentres) {
      const uint32_t row = (near_[half] ^ 16 * (chunk & 7U)) + 128 * (chunk >> 3U);
      if constexpr (kSide == Side::kKeys) {
        load_blocks(row, to);
      } else {
        load_transposed(row, to);
      }
    } else {
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t number = number_of(half, kSide == Side::kKeys ? i & 1U : i >> 1U);
        const uint32_t of_row = (chunk + (kSide == Side::kKeys ? i >> 1U : i & 1U)) ^ (number & 7U);
        const uint32_t word = __ldg(far_ + 4 * (number * kChunks + of_row));
        to[i] = kSide == Side::kKeys ? word : transpose8x8(word);
      }
    }
  }

 private:
  static constexpr uint32_t kChunks = G::kWidth / 8;

  __device__ __forceinline__ uint32_t number_of(int32_t half, uint32_t tile) const {
    return numbers_ >> (static_cast<uint32_t>(16 * half) + 8 * tile) & 0xFFU;
  }

  const uint32_t* far_;
  uint32_t numbers_;
  uint32_t near_[2];
};

/// Rotates rows of 16 key pairs slot by slot. `rotations`: address of the lane's cosines; sines are 512 bytes behind.
__device__ __forceinline__ void rotate_slots(uint32_t rotations, uint32_t (&first)[4], uint32_t (&second)[4]) {
  uint32_t cosine[4];
  uint32_t sine[4];
  to_array(load_shared<uint4>(rotations), cosine);
  to_array(load_shared<uint4>(rotations + 512), sine);
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) rotate_two(first[i], second[i], cosine[i], sine[i], first[i], second[i]);
}

/// Adds the products of a page's key centres and the queries to the scores. `rotations_buffer` holds the page's
/// rotation.
template <typename G>
__device__ __forceinline__ void add_page_centres(const Block<G>& block, const Unit& unit, const PageSide<G>& keys,
                                                 int32_t rotations_buffer, const QueryFragments<G>& queries,
                                                 Scores<G::kTiles>& scores) {
  Lane lane = keys.lane;
  lane.index = opaque(lane.index);
  lane.g = opaque(lane.g);
  using Blocks = CentreBlocks<G, Side::kKeys>;
  const CentreRows& rows = block.arguments.centres;
  const CentreMemory<G> memory(block);
  const int32_t place = Blocks::place(lane);
  uint32_t numbers = 0x18100800U + 0x01010101U * static_cast<uint32_t>(place);  // single centre: slot_of_row
  if (G::kCentres && keys.layout.format.key_indices()) {
    numbers = load_shared<uint32_t>(keys.address + static_cast<uint32_t>(keys.layout.keys.centres + 4 * place));
  }
  const Blocks blocks(lane, memory.keys, rows.keys + unit.head * rows.key_rows * (G::kWidth / 8), numbers);
  const uint32_t rotations = memory.slot_rotations + static_cast<uint32_t>(16 * lane.index);
  // Separate sums for the two channels of pairs shorten the dependency chains.
  Scores<G::kTiles> first;
  Scores<G::kTiles> second;
  clear(first);
  clear(second);
#pragma unroll
  for (int32_t m = 0; m < G::kWidth / 64; ++m) {
    const RotatedQueries<G> q(block, lane, rotations_buffer, m);
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
#pragma unroll
      for (int32_t v = 0; v < 2; ++v) {
        uint32_t x[4];
        uint32_t y[4];
        blocks.load(static_cast<uint32_t>(8 * m + 2 * v), half, x);
        blocks.load(static_cast<uint32_t>(8 * m + 4 + 2 * v), half, y);
        const int32_t pair = 32 * m + 16 * v;
        if (G::kCentres && pair < rows.fast_pairs) {
          rotate_slots(rotations + static_cast<uint32_t>(16 * slot_rotation_place(pair, half)), x, y);
        }
#pragma unroll
        for (int32_t n = 0; n < G::kTiles; ++n) {
          mma(first[n][half], x, q.first[n][2 * v], q.first[n][2 * v + 1]);
          mma(second[n][half], y, q.second[n][2 * v], q.second[n][2 * v + 1]);
        }
      }
    }
  }
#pragma unroll
  for (int32_t n = 0; n < G::kTiles; ++n) {
#pragma unroll
    for (int32_t i = 0; i < 8; ++i) {
      const float sum = first[n][i / 4][i % 4] + second[n][i / 4][i % 4];
      float& score = scores[n][i / 4][i % 4];
      score = fmaf(sum, queries.row_scale[n][i % 2], score);
    }
  }
}

/// Whether a page's keys are rotated by per-slot positions.
template <typename G>
__device__ __forceinline__ bool rotated_by_slot(const PageSide<G>& keys) {
  static_assert(kKeyLargest == 0 && kKeySlotRotation == 1);
  return load_shared<uint32_t>(keys.address + static_cast<uint32_t>(keys.layout.keys.numbers)) >> 16U != 0;
}

/// The same for pages with per-slot rotation, one slot per lane. Rare, so kept short rather than fast.
template <typename G>
__device__ __forceinline__ void add_own_centres(const Block<G>& block, const Unit& unit, const PageSide<G>& keys,
                                                const DevicePage& page, int32_t index, const QueryFragments<G>& queries,
                                                Scores<G::kTiles>& scores) {
  const AttendArguments& arguments = block.arguments;
  const auto& shared = shared_centres(block);
  const int32_t slot = block.lane.index;
  const int32_t position = slot < page.count() ? position_in_page(arguments, unit, page, index, slot) : 0;
  const auto place = static_cast<uint32_t>(slot_place(slot));
  uint32_t number = 0;
  if (keys.layout.format.key_indices()) {
    const auto word =
        load_shared<uint32_t>(keys.address + static_cast<uint32_t>(keys.layout.keys.centres) + (place & ~3U));
    number = word >> (8 * (place & 3U)) & 0xFFU;
  }
  const float* centre =
      arguments.centres.own_keys +
      (unit.head * arguments.centres.key_centres + static_cast<int32_t>(number)) * arguments.head.keys;
  float of_row[G::kRows] = {};
#pragma unroll 1
  for (int32_t pair = 0; 2 * pair < arguments.head.keys; ++pair) {
    const float2 rotation = rotation_at(shared.frequencies[pair], position);
    const float x = __ldg(centre + pair_channel(arguments, pair, 0));
    const float y = __ldg(centre + pair_channel(arguments, pair, 1));
    const float first = fmaf(x, rotation.x, -(y * rotation.y));
    const float second = fmaf(x, rotation.y, y * rotation.x);
#pragma unroll
    for (int32_t row = 0; row < G::kRows; ++row) {
      of_row[row] = fmaf(first, __half2float(shared.queries[row][query_place(pair, 0)]), of_row[row]);
      of_row[row] = fmaf(second, __half2float(shared.queries[row][query_place(pair, 1)]), of_row[row]);
    }
  }
#pragma unroll
  for (int32_t row = 0; row < G::kRows; ++row) {
#pragma unroll
    for (int32_t tile = 0; tile < 4; ++tile) {
      const float of_token = __shfl_sync(kAll, of_row[row], token_of(keys.lane.g, tile));
      const int32_t c = row % 2;
      float& score = scores[row / 8][tile / 2][2 * (tile % 2) + c];
      if (keys.lane.t == row % 8 / 2) score = fmaf(of_token, queries.row_scale[row / 8][c], score);
    }
  }
}

/// Adds weighted value centres, for weights without gains.
template <typename G>
__device__ __forceinline__ void add_centres_of_values(const Block<G>& block, const Unit& unit,
                                                      const PageSide<G>& values, const Weights<G::kTiles>& p,
                                                      Outputs<G>& outputs) {
  using Blocks = CentreBlocks<G, Side::kValues>;
  Lane lane = values.lane;
  lane.index = opaque(lane.index);
  lane.g = opaque(lane.g);
  const CentreRows& rows = block.arguments.centres;
  const Blocks blocks(
      lane, CentreMemory<G>(block).values, rows.values + unit.head * rows.value_centres * (G::kWidth / 8),
      load_shared<uint32_t>(values.address +
                            static_cast<uint32_t>(values.layout.values.centres + 4 * Blocks::place(lane))));
#pragma unroll
  for (int32_t m = 0; m < G::kChannels; ++m) {
    if (!values.geometry.has_channel(32 * m)) break;
#pragma unroll
    for (int32_t h = 0; h < 2; ++h) {
#pragma unroll
      for (int32_t half = 0; half < 2; ++half) {
        uint32_t x[4];
        blocks.load(static_cast<uint32_t>(4 * m + 2 * h), half, x);
#pragma unroll
        for (int32_t n = 0; n < G::kTiles; ++n) {
          mma(outputs.channels[n][m][h], x, p[n][2 * half], p[n][2 * half + 1]);
        }
      }
    }
  }
}

/// Adds a single centre, times the total weight of its tokens, to finished sums.
template <typename G>
__device__ __forceinline__ void add_single_centre(const Block<G>& block, const Unit& unit,
                                                  const SoftmaxState<G::kTiles>& softmax, Outputs<G>& outputs) {
  const Lane& lane = block.lane;
  const auto* centre =
      reinterpret_cast<const __half*>(block.arguments.centres.values + unit.head * (G::kWidth / 8)) + lane.g;
#pragma unroll
  for (int32_t n = 0; n < G::kTiles; ++n) {
#pragma unroll
    for (int32_t c = 0; c < 2; ++c) {
      float mass = softmax.sum[n][c] - softmax.uncentred[n][c];
      mass += __shfl_xor_sync(kAll, mass, 4);
      mass += __shfl_xor_sync(kAll, mass, 8);
      mass += __shfl_xor_sync(kAll, mass, 16);
#pragma unroll
      for (int32_t i = 0; i < 4 * G::kChannels; ++i) {
        float& out = outputs.channels[n][i / 4][i / 2 % 2][2 * (i % 2) + c];
        out = fmaf(mass, __half2float(centre[8 * i]), out);
      }
    }
  }
}

}  // namespace kvq::cuda
