// Mixing of a head's blocks for sizes that are no powers of two: T of core/head_rotation.h.
#pragma once

#include "core/head_rotation.h"

namespace kvq::cuda {

[[maybe_unused]] __device__ constexpr BlockFactors kDeviceFactors = kBlockFactors;

class BlockMix {
 public:
  __device__ __forceinline__ explicit BlockMix(int32_t head_dim)
      : width_(hadamard_block(head_dim)),
        blocks_(head_dim / width_),
        inverse_(1.0F / static_cast<float>(blocks_)),
        factors_(kDeviceFactors.numbers + first_factor(blocks_)) {}

  __device__ __forceinline__ bool mixes() const { return blocks_ > 1; }
  __device__ __forceinline__ int32_t head_dim() const { return blocks_ * width_; }
  /// Channels of a block.
  __device__ __forceinline__ int32_t width() const { return width_; }

  /// T[to][from]. Blocks beyond the last one give undefined numbers.
  __device__ __forceinline__ float factor(int32_t to, int32_t from) const {
    const int32_t product = to * from;
    // Exact: products are small and half a unit away from the next multiple.
    const auto times = static_cast<int32_t>((static_cast<float>(product) + 0.5F) * inverse_);
    return signed_by(to ^ from, factors_[product - times * blocks_]);
  }

  /// Channel of a row `[head_dim]` of blocks after mixing, with the host's order of sums.
  __device__ __forceinline__ float channel(const float* row, int32_t channel) const {
    const int32_t to = channel / width_;
    const float* from = row + channel % width_;
    float sum = factors_[0] * from[0];
    int32_t number = 0;
    for (int32_t block = 1; block < blocks_; ++block) {
      number += number + to < blocks_ ? to : to - blocks_;
      sum += factors_[number] * signed_by(block, from[block * width_]);
    }
    return signed_by(to, sum);
  }

 private:
  __device__ __forceinline__ static float signed_by(int32_t block, float x) {
    return (__popc(static_cast<uint32_t>(block)) & 1) != 0 ? -x : x;
  }

  int32_t width_;
  int32_t blocks_;
  float inverse_;
  const float* factors_;
};

}  // namespace kvq::cuda
