// A block walks the pages that its rows see. Its warps decode pages together, then divide products: those with keys by
// tokens, those with values by channels, so that outputs of 512 channels stay in registers.
#pragma once

#include "kernels/wide/pages.cuh"
#include "kernels/wide/products.cuh"
#include "kernels/wide/queries.cuh"
#include "kernels/wide/visible.cuh"

namespace kvq::cuda {

template <typename S>
class WideWalk {
 public:
  __device__ __forceinline__ explicit WideWalk(const WideBlock<S>& block)
      : block_(block), place_(warp_place<S>(block.lane)) {
    clear_outputs();
#pragma unroll
    for (int32_t i = 0; i < 2 * S::kRowTiles; ++i) {
      maximum_[i] = minus_infinity();
      sum_[i] = 0.0F;
    }
  }

  /// Attends to pages [begin, end) of the list, run by run.
  __device__ __forceinline__ void run(int32_t begin, int32_t end, const QueryRange& range) {
    range_ = range;
#pragma unroll 1
    while (begin < end) {
      const FormatCode format{__ldg(&records()[begin].state) & FormatCode::kMask};
      const int32_t next = end_of_run(records(), block_.lane, format, begin, end);
      enter(format);
      walk(format, begin, next);
      begin = next;
    }
  }

  /// Writes outputs, or a partial if there are several parts.
  __device__ __forceinline__ void finish() {
    WideHeader<S>& header = block_.header();
    __syncthreads();
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
    __syncthreads();
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

 private:
  using Scores = WideScores<S>;
  static constexpr int32_t kTokenTiles = S::kTokenTiles;

  __device__ __forceinline__ const DevicePage* records() const { return pages_of(block_.arguments, block_.unit); }
  /// Row i / 2, eight further for odd i, of the lane's fragments.
  __device__ __forceinline__ int32_t row_of(int32_t i) const { return place_.first_row + 8 * i + block_.lane.g; }
  __device__ __forceinline__ bool capped() const { return block_.arguments.softcap > 0.0F; }
  /// A score as a logit; those with a soft cap are logits already.
  __device__ __forceinline__ float logit(int32_t i, float score) const {
    if (capped()) return score;
    return fmaf(score, block_.header().row_scale[row_of(i)], block_.header().row_bias[row_of(i)]);
  }

  __device__ __forceinline__ void clear_outputs() {
#pragma unroll
    for (int32_t m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
      for (int32_t i = 0; i < 8 * S::kChannelTiles; ++i) outputs_[m][i] = 0.0F;
    }
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
    __syncthreads();
    if (entered_ && values != rotated_values_) turn_outputs();
    load_queries(keys, values);
    order_before_copies();
    __syncthreads();
    entered_ = true;
    rotated_keys_ = keys;
    rotated_values_ = values;
  }

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
    __syncthreads();
    const BlockMix mix(block_.arguments.head.values);
    // Queries are loaded anew.
    float* other = reinterpret_cast<float*>(block_.memory) + block_.lane.warp * S::kValues;
#pragma unroll 1
    for (int32_t row = block_.lane.warp; row < S::kRows; row += S::kWarps) {
      turn_row(output_row(row), other, mix, block_.lane);
    }
    __syncthreads();
    for_output_pairs([](const float2& place, float& first, float& second) {
      first = place.x;
      second = place.y;
    });
    __syncthreads();
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

  /// Pages [first, end), which have one format.
  __device__ __forceinline__ void walk(FormatCode format, int32_t first, int32_t end) {
    const bool latent = block_.launch.common_width > 0;
    PageLayout& layout = block_.header().layout;
    if (threadIdx.x == 0) layout = layout_of_pages(block_.arguments, format);
    __syncthreads();
    PageRun<S> run(block_, layout, first, end);
    const WideProducts<S> products(block_, place_);
    run.start_copies();
    float factors[2 * S::kRowTiles];
    // A step is two halves, products with keys and those with values, in one loop: the instructions that decode a side
    // exist once.
#pragma unroll 1
    for (int32_t half = 0; half < 2 * run.steps(); ++half) {
      const int32_t step = half / 2;
      const bool keys = half % 2 == 0;
      if (keys) run.make_keys(step, parity_);
      if (keys == latent) run.make_values(step, latent ? block_.at.common : 0, parity_);
      if constexpr (S::kWarpgroups) order_before_copies();  // and before products
      __syncthreads();  // the tile is made, its copies are no longer needed, and weights are there
      run.start_copies();
      if (keys) {
        Scores scores;
        products.multiply_keys(scores);
        weigh(run, step, scores, factors);
      } else {
        rescale(factors);
        products.add_values(outputs_);
        __syncthreads();  // the tile and the weights are no longer needed
      }
    }
  }

  /// Turns scores into weights in shared memory; `factors`: rescaling of earlier outputs. A barrier within makes all
  /// warps leave the keys.
  __device__ __forceinline__ void weigh(const PageRun<S>& run, int32_t step, Scores& scores,
                                        float (&factors)[2 * S::kRowTiles]) {
    WideHeader<S>& header = block_.header();
    const Lane& lane = block_.lane;
    if (capped()) {
      const float cap = block_.arguments.softcap;
#pragma unroll
      for (int32_t i = 0; i < 2 * S::kRowTiles; ++i) {
        const float scale = header.row_scale[row_of(i)];
        const float bias = header.row_bias[row_of(i)];
#pragma unroll
        for (int32_t j = 0; j < 2 * kTokenTiles; ++j) {
          float& each = scores[i / 2][j / 2][2 * (i % 2) + j % 2];
          each = cap * tanhf(fmaf(each, scale, bias) / cap);
        }
      }
    }
    mask(run, step, scores);
#pragma unroll
    for (int32_t i = 0; i < 2 * S::kRowTiles; ++i) {
      float highest = minus_infinity();
#pragma unroll
      for (int32_t j = 0; j < 2 * kTokenTiles; ++j) {
        highest = fmaxf(highest, scores[i / 2][j / 2][2 * (i % 2) + j % 2]);
      }
      highest = fmaxf(highest, __shfl_xor_sync(kAll, highest, 1));
      highest = fmaxf(highest, __shfl_xor_sync(kAll, highest, 2));
      if (lane.t == 0) header.maxima[place_.column][row_of(i)] = highest;
    }
    __syncthreads();
#pragma unroll
    for (int32_t i = 0; i < 2 * S::kRowTiles; ++i) {
      const int32_t row = row_of(i);
      float highest = maximum_[i];
#pragma unroll
      for (int32_t c = 0; c < S::kColumnWarps; ++c) highest = fmaxf(highest, header.maxima[c][row]);
      const float scale = capped() ? 1.0F : header.row_scale[row];
      const float reference = highest == minus_infinity() ? 0.0F : highest * scale;
      factors[i] = exp2_fast(fmaf(maximum_[i], scale, -reference));
      maximum_[i] = highest;
      float sum = sum_[i] * factors[i];
      uint8_t* weights = block_.memory + block_.at.weights + (place_.page * S::kRows + row) * 2 * kSlots;
#pragma unroll
      for (int32_t n = 0; n < kTokenTiles; ++n) {
        const float two[2] = {exp2_fast(fmaf(scores[i / 2][n][2 * (i % 2)], scale, -reference)),
                              exp2_fast(fmaf(scores[i / 2][n][2 * (i % 2) + 1], scale, -reference))};
        sum += two[0] + two[1];
        const int32_t chunk = (place_.slot / 8 + n) ^ (row / 2 & 3);
        *reinterpret_cast<uint32_t*>(weights + chunk * 16 + 4 * lane.t) = pack(two[0], two[1]);
      }
      sum_[i] = sum;
    }
  }

  /// Masks the tokens that a row does not see.
  __device__ __forceinline__ void mask(const PageRun<S>& run, int32_t step, Scores& scores) const {
    const AttendArguments& arguments = block_.arguments;
    const bool exists = place_.page < run.pages_of(step);
    const int32_t index = run.page_of(step, place_.page);
    const uint4 record = exists ? __ldg(reinterpret_cast<const uint4*>(records()) + index) : uint4{0, 0, 0, 0};
    if (exists && !needs_mask(record, range_, arguments.window)) return;
    const DevicePage page = page_of(record.z, record.w);
#pragma unroll
    for (int32_t n = 0; n < kTokenTiles; ++n) {
#pragma unroll
      for (int32_t c = 0; c < 2; ++c) {
        const int32_t slot = place_.slot + 8 * n + 2 * block_.lane.t + c;
        const bool held = slot < page.count();
        const int32_t position = held ? position_in_page(arguments, block_.unit, page, index, slot) : 0;
#pragma unroll
        for (int32_t i = 0; i < 2 * S::kRowTiles; ++i) {
          const int32_t of_row = block_.header().row_position[row_of(i)];
          const bool seen = held && position <= of_row &&
                            (arguments.window == 0 || position > static_cast<int64_t>(of_row) - arguments.window);
          if (!seen) scores[i / 2][n][2 * (i % 2) + c] = minus_infinity();
        }
      }
    }
  }

  const WideBlock<S>& block_;
  const WarpPlace place_;
  QueryRange range_{};
  bool entered_ = false;
  bool rotated_keys_ = false;
  bool rotated_values_ = false;
  uint32_t parity_ = 0;
  // Of the lane's rows row_of(i).
  float maximum_[2 * S::kRowTiles];
  float sum_[2 * S::kRowTiles];  // over this warp's tokens
  WideOutputs<S> outputs_;
};

template <typename S>
__global__ void __launch_bounds__(S::kThreads, 1)
    wide_kernel(const __grid_constant__ AttendArguments arguments, const __grid_constant__ WideLaunch launch) {
  extern __shared__ __align__(1024) uint8_t memory[];
  const BlockWork work = block_work<S::kRows>(arguments, launch);
  const WideBlock<S> block{arguments, launch, WidePlaces::of<S>(launch), memory, work.unit, work.rows, this_lane()};
  WideHeader<S>& header = block.header();
  put_row_positions<S::kRows>(arguments, work, header.row_position);
  make_stage_barriers(header.arrived);
  const QueryRange range = positions_of(header.row_position, 0, block.rows);
  const TileRun run = visible_part(arguments, launch, work.unit, range);
  WideWalk<S> walk(block);
  walk.run(run.begin, run.end, range);
  walk.finish();
}

}  // namespace kvq::cuda
