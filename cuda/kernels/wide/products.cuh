// Products of a block's warps with decoded pages, by mma.sync.
#pragma once

#include "kernels/wide/memory.cuh"

namespace kvq::cuda {

template <typename S>
class WideProducts {
 public:
  using Scores = WideScores<S>;

  __device__ __forceinline__ WideProducts(const WideBlock<S>& block, const WarpPlace& place)
      : block_(block), place_(place) {}

  /// Scores of this warp's rows and tokens.
  __device__ __forceinline__ void multiply_keys(Scores& scores) const {
    const int32_t lane = block_.lane.index;
    const int32_t slot = place_.slot;
    const uint32_t tile = shared_address(block_.memory + block_.at.tiles + place_.page * block_.at.tile_bytes);
#pragma unroll
    for (int32_t i = 0; i < 8 * S::kRowTiles; ++i) scores[i / 8][i / 4 % 2][i % 4] = 0.0F;
    // A latent's common channels are stored as values, a row per channel.
    const int32_t planes_of_common = block_.launch.common_width / 64;
    const uint32_t common =
        tile + static_cast<uint32_t>(block_.at.common + value_chunk_at(slot + lane / 16 * 8, lane % 16));
#pragma unroll 1
    for (int32_t plane = 0; plane < planes_of_common; ++plane) {
      multiply_plane(
          plane,
          [&](int32_t i, uint32_t(&b)[4]) {
            load_transposed(common + static_cast<uint32_t>((plane * 64 + 16 * i) * 64), b);
          },
          scores);
    }
    const uint32_t keys =
        tile + static_cast<uint32_t>(plane_chunk_at(64, kSlots, slot + lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8));
#pragma unroll 1
    for (int32_t plane = 0; plane < block_.launch.key_width / 64; ++plane) {
      multiply_plane(
          planes_of_common + plane,
          [&](int32_t i, uint32_t(&b)[4]) {
            load_blocks((keys ^ static_cast<uint32_t>(32 * i)) + static_cast<uint32_t>(plane * kSlots * 128), b);
          },
          scores);
    }
  }

  /// Adds the products of a step's weights and values.
  __device__ __forceinline__ void add_values(WideOutputs<S>& outputs) const {
    const int32_t lane = block_.lane.index;
    const int32_t values_at = block_.launch.common_width > 0 ? block_.at.common : 0;
    const int32_t tiles = block_.launch.value_width / 16 / S::kColumnWarps;  // of channels
#pragma unroll
    for (int32_t page = 0; page < S::kPages; ++page) {
      const uint32_t weights = shared_address(block_.memory + block_.at.weights + page * S::kRows * 2 * kSlots);
      const uint32_t values =
          shared_address(block_.memory + block_.at.tiles + page * block_.at.tile_bytes + values_at) +
          static_cast<uint32_t>(
              value_chunk_at(lane / 8 % 2 * 8, 16 * tiles * place_.column + lane / 16 * 8 + lane % 8));
#pragma unroll
      for (int32_t i = 0; i < kSlots / 16; ++i) {
        uint32_t a[S::kRowTiles][4];
#pragma unroll
        for (int32_t m = 0; m < S::kRowTiles; ++m) {
          const int32_t row = place_.first_row + 16 * m + lane % 16;
          const int32_t chunk = (2 * i + lane / 16) ^ (row / 2 & 3);
          load_blocks(weights + static_cast<uint32_t>(row * 2 * kSlots + chunk * 16), a[m]);
        }
#pragma unroll
        for (int32_t j = 0; j < S::kChannelTiles; ++j) {
          if (j >= tiles) break;
          uint32_t b[4];
          load_blocks((values ^ static_cast<uint32_t>(32 * i)) + static_cast<uint32_t>(j * 16 * 64), b);
#pragma unroll
          for (int32_t m = 0; m < S::kRowTiles; ++m) {
            mma(*reinterpret_cast<float(*)[4]>(&outputs[m][8 * j]), a[m], b[0], b[1]);
            mma(*reinterpret_cast<float(*)[4]>(&outputs[m][8 * j + 4]), a[m], b[2], b[3]);
          }
        }
      }
    }
  }

 private:
  static_assert(S::kTokenTiles == 2);

  /// Adds products with 64 channels of queries. `keys`: returns the operands of channels from 16 · i on.
  template <typename Keys>
  __device__ __forceinline__ void multiply_plane(int32_t plane, const Keys& keys, Scores& sums) const {
    const int32_t lane = block_.lane.index;
    const uint32_t queries =
        shared_address(block_.memory) +
        static_cast<uint32_t>(plane_chunk_at(64, S::kRows, place_.first_row + lane % 16, lane / 16 * 8) +
                              plane * S::kRows * 128);
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      uint32_t b[4];
      keys(i, b);
#pragma unroll
      for (int32_t m = 0; m < S::kRowTiles; ++m) {
        uint32_t a[4];
        load_blocks((queries ^ static_cast<uint32_t>(32 * i)) + static_cast<uint32_t>(16 * m * 128), a);
        mma(sums[m][0], a, b[0], b[1]);
        mma(sums[m][1], a, b[2], b[3]);
      }
    }
  }

  const WideBlock<S>& block_;
  const WarpPlace place_;
};

}  // namespace kvq::cuda
