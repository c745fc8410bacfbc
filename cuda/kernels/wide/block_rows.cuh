// What the warps of a block of many rows hold of these while they walk pages: outputs in registers, queries in shared
// memory.
#pragma once

#include "kernels/wide/memory.cuh"
#include "kernels/wide/queries.cuh"

namespace kvq::cuda {

/// S::wait: a barrier of the warps that hold rows.
template <typename S>
class BlockRows {
 public:
  __device__ __forceinline__ explicit BlockRows(const WideBlock<S>& block)
      : block_(block), place_(warp_place<S>(block.lane)) {
#pragma unroll
    for (int32_t m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
      for (int32_t i = 0; i < 8 * S::kChannelTiles; ++i) outputs_[m][i] = 0.0F;
    }
#pragma unroll
    for (int32_t i = 0; i < 2 * S::kRowTiles; ++i) {
      maximum_[i] = minus_infinity();
      sum_[i] = 0.0F;
    }
  }

  /// Writes outputs, or a partial if there are several parts.
  __device__ __forceinline__ void finish() {
    WideHeader<S>& header = block_.header();
    S::wait();
    store_outputs();
#pragma unroll
    for (int32_t i = 0; i < 2 * S::kRowTiles; ++i) {
      sum_[i] += __shfl_xor_sync(kAll, sum_[i], 1);
      sum_[i] += __shfl_xor_sync(kAll, sum_[i], 2);
      if (block_.lane.t == 0) header.maxima[place_.column][row_of(i)] = sum_[i];
      if (block_.lane.t == 0 && place_.column == 0) {
        const bool none = maximum_[i] == minus_infinity();
        header.highest[row_of(i)] = none ? minus_infinity() : logit(i, maximum_[i]);
      }
    }
    S::wait();
    float* partials = nullptr;
    if (block_.launch.parts > 1) {
      partials = block_.launch.partials + static_cast<size_t>(blockIdx.x) * partial_floats(S::kRows, S::kValues);
    }
    const BlockMix mix(block_.arguments.head.values);
#pragma unroll 1
    for (int32_t row = block_.lane.warp; row < block_.rows; row += S::kWarps) {
      RowSum seen{header.highest[row], 0.0F};
#pragma unroll
      for (int32_t c = 0; c < S::kColumnWarps; ++c) seen.sum += header.maxima[c][row];
      write_output_row<S::kRows, S::kValues>(block_.arguments, block_.unit, block_.lane, row, seen, output_row(row),
                                             mix, rotated_values_, partials);
    }
  }

 protected:
  __device__ __forceinline__ const DevicePage* records() const { return pages_of(block_.arguments, block_.unit); }
  /// Row i / 2, eight further for odd i, of the lane's fragments.
  __device__ __forceinline__ int32_t row_of(int32_t i) const { return place_.first_row + 8 * i + block_.lane.g; }
  __device__ __forceinline__ bool capped() const { return block_.arguments.softcap > 0.0F; }
  /// A score as a logit; those with a soft cap are logits already.
  __device__ __forceinline__ float logit(int32_t i, float score) const {
    if (capped()) return score;
    return fmaf(score, block_.header().row_scale[row_of(i)], block_.header().row_bias[row_of(i)]);
  }

  __device__ __forceinline__ void rescale(const float (&factors)[2 * S::kRowTiles]) {
#pragma unroll
    for (int32_t m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
      for (int32_t i = 0; i < 8 * S::kChannelTiles; ++i) outputs_[m][i] *= factors[2 * m + i / 2 % 2];
    }
  }

  /// Makes queries and outputs agree with the rotations of pages.
  __device__ __forceinline__ void enter(FormatCode format) {
    const bool keys = format.hadamard_keys();
    const bool values = format.hadamard_values();
    if (entered_ && keys == rotated_keys_ && values == rotated_values_) return;
    S::wait();
    if (entered_ && values != rotated_values_) turn_outputs();
    load_queries(keys, values);
    order_before_copies();
    S::wait();
    entered_ = true;
    rotated_keys_ = keys;
    rotated_values_ = values;
  }

  const WideBlock<S>& block_;
  const WarpPlace place_;
  // Of the lane's rows row_of(i).
  float maximum_[2 * S::kRowTiles];
  float sum_[2 * S::kRowTiles];  // over this warp's tokens
  WideOutputs<S> outputs_;

 private:
  // Outputs as rows of floats, in place of tiles and pages.
  __device__ __forceinline__ float* output_row(int32_t row) const { return block_.row_memory() + row * S::kValues; }
  template <typename Do>
  __device__ __forceinline__ void for_output_pairs(const Do& act) {
    const int32_t tiles = block_.launch.value_width / 16 / S::kColumnWarps;  // of channels, per warp
#pragma unroll
    for (int32_t m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
      for (int32_t i = 0; i < 4 * S::kChannelTiles; ++i) {
        const int32_t channel = 16 * (tiles * place_.column + i / 4) + i / 2 % 2 * 8 + 2 * block_.lane.t;
        if (i / 4 >= tiles) break;
        act(*reinterpret_cast<float2*>(output_row(row_of(2 * m + i % 2)) + channel), outputs_[m][2 * i],
            outputs_[m][2 * i + 1]);
      }
    }
  }
  __device__ __forceinline__ void store_outputs() {
    for_output_pairs([](float2& place, float first, float second) { place = {first, second}; });
  }
  __device__ __forceinline__ void turn_outputs() {
    store_outputs();
    S::wait();
    const BlockMix mix(block_.arguments.head.values);
    // Queries are loaded anew.
    float* other = reinterpret_cast<float*>(block_.memory) + block_.lane.warp * S::kValues;
#pragma unroll 1
    for (int32_t row = block_.lane.warp; row < S::kRows; row += S::kWarps) {
      turn_row(output_row(row), other, mix, block_.lane);
    }
    S::wait();
    for_output_pairs([](const float2& place, float& first, float& second) {
      first = place.x;
      second = place.y;
    });
    S::wait();
  }

  /// Loads the block's queries, with the rotations that pages have: in the order of decoded keys, those channels that
  /// meet a latent's common ones first. The memory of tiles and pages is free.
  __device__ __forceinline__ void load_queries(bool rotated_keys, bool rotated_common) {
    constexpr int32_t kMine = S::kReadRows;
    WideHeader<S>& header = block_.header();
    const QueryBlock queries{block_.arguments,    block_.unit,      block_.rows,    block_.lane,
                             header.row_position, header.row_scale, header.row_bias};
    float* mine = block_.row_memory() + block_.lane.warp * query_floats<kMine>(block_.arguments.head);
    const int32_t common_width = block_.launch.common_width;
    uint8_t* planes = block_.memory;
#pragma unroll 1
    for (int32_t row = kMine * block_.lane.warp; row < S::kRows; row += kMine * S::kWarps) {
      load_query_rows_of<kMine>(queries, row, rotated_keys, rotated_common, {common_width, block_.launch.key_width},
                                mine, [=](bool is_common, int32_t of_row, int32_t channel, float x) {
                                  const int32_t at = is_common ? channel : common_width + channel;
                                  uint8_t* chunk = planes + plane_chunk_at(64, S::kRows, of_row, at);
                                  reinterpret_cast<__half*>(chunk)[channel % 8] = __float2half_rn(x);
                                });
    }
  }

  bool entered_ = false;
  bool rotated_keys_ = false;
  bool rotated_values_ = false;
};

}  // namespace kvq::cuda
