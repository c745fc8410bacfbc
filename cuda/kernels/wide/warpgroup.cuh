// Products of a block's two warpgroups with decoded pages, by wgmma: each has 64 rows, of a step the tokens of one
// page, and half of the channels of outputs.
#pragma once

#include "kernels/device/warpgroup.cuh"
#include "kernels/wide/products.cuh"

namespace kvq::cuda {

template <int kMostValues>
struct WarpgroupShape : WideShape<1, 4, 2, 2, kMostValues> {
  static constexpr bool kWarpgroups = true;
};

template <int kMostValues>
class WideProducts<WarpgroupShape<kMostValues>> {
 public:
  using S = WarpgroupShape<kMostValues>;

  __device__ __forceinline__ WideProducts(const WideBlock<S>& block, const WarpPlace& place)
      : block_(block), column_(__shfl_sync(kAll, place.column, 0)) {}

  __device__ __forceinline__ void multiply_keys(WideScores<S>& scores) const {
    float(&sums)[16] = *reinterpret_cast<float(*)[16]>(&scores[0][0][0]);
    const uint32_t tile = shared_address(block_.memory + block_.at.tiles + column_ * block_.at.tile_bytes);
    uint64_t queries = describe_plane<128>(shared_address(block_.memory));
    uint64_t common = describe_transposed(tile + static_cast<uint32_t>(block_.at.common));
    uint64_t keys = describe_plane<128>(tile);
    begin_products();
    bool add = false;
#pragma unroll 1
    for (int32_t plane = 0; plane < block_.launch.common_width / 64; ++plane) {
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        multiply_planes<true>(sums, queries + static_cast<uint64_t>(2 * i), common, add);
        add = true;
        common += 16 * 64 >> 4;
      }
      queries += S::kRows * 128 >> 4;
    }
#pragma unroll 1
    for (int32_t plane = 0; plane < block_.launch.key_width / 64; ++plane) {
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        multiply_planes<false>(sums, queries + static_cast<uint64_t>(2 * i), keys + static_cast<uint64_t>(2 * i), add);
        add = true;
      }
      queries += S::kRows * 128 >> 4;
      keys += kSlots * 128 >> 4;
    }
    commit_products();
    wait_products<0>();
    hold(sums);
  }

  __device__ __forceinline__ void add_values(WideOutputs<S>& outputs) const {
    constexpr int32_t kColumns = kMostValues / 2;
    float(&sums)[kColumns / 2] = outputs[0];
    const int32_t values_at = block_.launch.common_width > 0 ? block_.at.common : 0;
    begin_products();
#pragma unroll
    for (int32_t page = 0; page < S::kPages; ++page) {
      const uint64_t weights =
          describe_plane<64>(shared_address(block_.memory + block_.at.weights + page * S::kRows * 2 * kSlots));
      const uint64_t values = describe_plane<64>(shared_address(
          block_.memory + block_.at.tiles + page * block_.at.tile_bytes + values_at + column_ * kColumns * 2 * kSlots));
#pragma unroll
      for (int32_t i = 0; i < kSlots / 16; ++i) {
        multiply_planes(sums, weights + static_cast<uint64_t>(2 * i), values + static_cast<uint64_t>(2 * i));
      }
    }
    commit_products();
    wait_products<0>();
    hold(sums);
  }

 private:
  const WideBlock<S>& block_;
  const int32_t column_;
};

}  // namespace kvq::cuda
