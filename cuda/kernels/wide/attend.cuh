// A block walks the pages that its rows see. Its warps decode pages together, then divide products: those with keys by
// tokens, those with values by channels, so that outputs of 512 channels stay in registers.
#pragma once

#include "kernels/wide/block_rows.cuh"
#include "kernels/wide/pages.cuh"
#include "kernels/wide/products.cuh"
#include "kernels/wide/visible.cuh"

namespace kvq::cuda {

template <typename S>
class WideWalk : public BlockRows<S> {
 public:
  using BlockRows<S>::BlockRows;

  /// Attends to pages [begin, end) of the list, run by run.
  __device__ __forceinline__ void run(int32_t begin, int32_t end, const VisibleRange& range) {
    range_ = range;
#pragma unroll 1
    while (begin < end) {
      const FormatRun run = run_from(records(), block_.lane, begin, end);
      this->enter(run.format);
      walk(run);
      begin = run.end;
    }
  }

 private:
  using Scores = WideScores<S>;
  static constexpr int32_t kTokenTiles = S::kTokenTiles;
  using BlockRows<S>::block_;
  using BlockRows<S>::place_;
  using BlockRows<S>::maximum_;
  using BlockRows<S>::sum_;
  using BlockRows<S>::outputs_;
  using BlockRows<S>::records;
  using BlockRows<S>::row_of;
  using BlockRows<S>::capped;

  __device__ __forceinline__ void walk(const FormatRun& of_format) {
    const bool latent = block_.launch.common_width > 0;
    PageLayout& layout = block_.header().layout;
    if (threadIdx.x == 0) layout = layout_of_pages(block_.arguments, of_format.format);
    __syncthreads();
    PageRun<S> run(block_, layout, of_format.first, of_format.end);
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
      __syncthreads();  // the tile is made, its copies are no longer needed, and weights are there
      run.start_copies();
      if (keys) {
        Scores scores;
        products.multiply_keys(scores);
        weigh(run, step, scores, factors);
      } else {
        this->rescale(factors);
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
    if (exists && !needs_mask(record, index, range_, arguments.window)) return;
    const DevicePage page = page_of(record.z, record.w);
    const MaskedUnit unit_rows{arguments, block_.unit, block_.rows, range_.first_masked};
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
          const bool seen = held && sees_slot(unit_rows, row_of(i), of_row, index * kSlots + slot, position);
          if (!seen) scores[i / 2][n][2 * (i % 2) + c] = minus_infinity();
        }
      }
    }
  }

  VisibleRange range_{};
  uint32_t parity_ = 0;
};

template <typename S>
__global__ void __launch_bounds__(S::kThreads, 1)
    wide_kernel(const __grid_constant__ AttendArguments arguments, const __grid_constant__ WideLaunch launch) {
  extern __shared__ __align__(1024) uint8_t memory[];
  const BlockWork work = block_work<S::kRows>(arguments, launch);
  if (work.rows <= 0) return;
  const WideBlock<S> block{arguments, launch, WidePlaces::of<S>(launch), memory, work.unit, work.rows, this_lane()};
  WideHeader<S>& header = block.header();
  put_row_positions<S::kRows>(arguments, work, header.row_position);
  make_stage_barriers(header.arrived);
  const VisibleRange range{positions_of(header.row_position, 0, block.rows), first_masked(arguments, work.unit)};
  const TileRun run = visible_part(arguments, launch, work.unit, range);
  WideWalk<S> walk(block);
  walk.run(run.begin, run.end, range);
  walk.finish();
}

}  // namespace kvq::cuda
