// A block of few rows walks the pages that these see. Its warps divide the channels of both sides: each multiplies its
// slice of keys, the sums of all make scores, and each weighs its slice of values. Codes are operands as they are
// stored.
#pragma once

#include "kernels/pages/kinds.cuh"
#include "kernels/pages/softmax.cuh"
#include "kernels/prefill/prefill.h"
#include "kernels/wide/common_scores.cuh"
#include "kernels/wide/copies.cuh"
#include "kernels/wide/slice_queries.cuh"
#include "kernels/wide/visible.cuh"

namespace kvq::cuda {

template <typename S>
class SliceWalk {
 public:
  __device__ __forceinline__ SliceWalk(const SliceBlock<S>& block, const VisibleRange& range)
      : block_(block), range_(range) {
    const HeadShape& head = block.arguments.head;
    const int32_t of_values = ((head.values + 31) / 32 + S::kWarps - 1) / S::kWarps * 32;
    values_ = slice_of<typename S::Values>(head.values, of_values);
    clear(outputs_);
#pragma unroll
    for (int32_t i = 0; i < 2 * kTiles; ++i) reference_[i / 2][i % 2] = minus_infinity();
  }

  /// Attends to pages [begin, end) of the list, run by run.
  __device__ __forceinline__ void run(const TileRun& pages) {
    int32_t begin = pages.begin;
#pragma unroll 1
    while (begin < pages.end) {
      const FormatRun run = run_from(records(), block_.lane, begin, pages.end);
      enter(run.format);
      walk(run.first, run.end);
      begin = run.end;
    }
  }

  /// Writes outputs, or a partial if there are several parts.
  __device__ __forceinline__ void finish() {
    SliceHeader<S>& header = block_.header();
#pragma unroll
    for (int32_t c = 0; c < 2; ++c) {
      float sum = sum_[c];
      sum += __shfl_xor_sync(kAll, sum, 4);
      sum += __shfl_xor_sync(kAll, sum, 8);
      sum += __shfl_xor_sync(kAll, sum, 16);
      if (block_.lane.g != 0) continue;
      header.sums[block_.lane.warp][2 * block_.lane.t + c] = sum;
#pragma unroll
      for (int32_t n = 0; n < kTiles; ++n) {
        if (block_.lane.warp == 0) header.row_maximum[8 * n + 2 * block_.lane.t + c] = reference_[n][c];
      }
    }
    const FloatRows rows = put_outputs();
    float* partials = nullptr;
    if (block_.launch.parts > 1) {
      partials = block_.launch.partials + static_cast<size_t>(blockIdx.x) * partial_floats(S::kRows, S::kValues);
    }
#pragma unroll 1
    for (int32_t row = block_.lane.warp; row < block_.rows; row += S::kWarps) {
      RowSum seen{header.row_maximum[row], 0.0F};
#pragma unroll
      for (int32_t w = 0; w < kTileWarps; ++w) seen.sum += header.sums[row / 8 * kTileWarps + w][row % 8];
      write_output_row<S::kRows, S::kValues>(block_.arguments, block_.unit, block_.lane, row, seen, rows.row(row),
                                             rows.mix, turned_values(), partials);
    }
  }

 private:
  static constexpr int32_t kTiles = S::kTiles;
  static constexpr int32_t kTileWarps = S::kWarps / kTiles;  // that weigh the tokens of a tile of rows
  static constexpr int32_t kPart = 4 / kTileWarps;           // tiles of tokens, per warp
  using Keys = typename S::Keys;
  using FewKeys = typename S::FewKeys;
  using Values = typename S::Values;

  __device__ __forceinline__ const DevicePage* records() const { return pages_of(block_.arguments, block_.unit); }

  /// This warp's slice of `dim` channels.
  template <typename G>
  __device__ __forceinline__ G slice_of(int32_t dim, int32_t width) const {
    const int32_t first = block_.lane.warp * width;
    return {dim, first, min(first + width, dim)};
  }

  __device__ __forceinline__ bool turned_values() const { return format_.hadamard_values(); }

  /// Makes queries and outputs agree with the rotations and words of pages.
  __device__ __forceinline__ void enter(FormatCode format) {
    const HeadShape& head = block_.arguments.head;
    __syncthreads();  // the ring is free
    if (entered_ && format.bits == format_.bits) return;
    if (entered_ && format.hadamard_values() != turned_values()) turn_outputs();
    format_ = format;
    entered_ = true;
    if (threadIdx.x == 0) block_.header().layout = layout_of_pages(block_.arguments, format);
    load_slice_queries(block_, format.hadamard_keys(), turned_values(), !format.values().is_float16());
    const SliceQueries at = SliceQueries::of<S>(head);
    const KeyOrder order = PageKinds<Keys>::order(format.keys());
    few_keys_ = S::kLatent && order.fields == 1 && head.keys <= S::kWarps * FewKeys::kWidth;
    keys_ = slice_of<Keys>(head.keys, few_keys_ ? FewKeys::kWidth : Keys::kWidth);
    if constexpr (!S::kLatent) {
      const auto* rows = reinterpret_cast<const __half*>(block_.memory + at.keys);
      if (!keys_.is_empty()) load_key_queries<Keys>(rows, at.key_stride, order, format.keys().has_gains(), queries_);
    } else {
      const auto* rows = reinterpret_cast<const __half*>(block_.memory + at.common);
      key_stride_ = at.key_stride;
      load_common_queries(values_, rows + values_.first, at.common_stride, block_.lane, common_queries_);
#pragma unroll
      for (int32_t i = 0; i < 2 * kTiles && !format.values().is_float16(); ++i) {
        const int32_t row = 8 * (i / 2) + 2 * block_.lane.t + i % 2;
        float sum = 0.0F;
        for (int32_t m = values_.first / 32; 32 * m < values_.end; ++m) sum += block_.header().common_sums[m][row];
        common_queries_.sums[i / 2][i % 2] = sum;
      }
    }
    order_before_copies();
    __syncthreads();
  }

  /// Queries that meet this warp's slice of keys. `rows`: of FP16, from the first channel on.
  template <typename G>
  __device__ __forceinline__ void load_key_queries(const __half* rows, int32_t stride, const KeyOrder& order,
                                                   bool gains, QueryFragments<G>& to) const {
    load_fragments<G>(rows + keys_.first, stride, order, block_.lane, to);
    if (gains) sum_queries(order, block_.lane, to);
    load_row_scales<G>(block_.header().row_scale, block_.lane, to);
  }

  // Outputs as rows of floats, in place of pages. Volatile, because the compiler would keep what it stores as vectors
  // in neighbouring registers, and move them for every page.
  template <typename Do>
  __device__ __forceinline__ void for_outputs(const FloatRows& rows, const Do& act) {
    volatile float* mine = rows.row(2 * block_.lane.t) + 4 * block_.lane.g;
#pragma unroll
    for (int32_t m = 0; m < Values::kChannels; ++m) {
      const int32_t channel = values_.first + 32 * m;
      if (!values_.has_channel(channel + 4 * block_.lane.g)) break;
      volatile float* of_block = mine + channel;
#pragma unroll
      for (int32_t n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int32_t c = 0; c < 2; ++c) {
          volatile float* four = of_block + (8 * n + c) * rows.stride;
          float(&of_tile)[2][4] = outputs_.channels[n][m];
#pragma unroll
          for (int32_t i = 0; i < 4; ++i) act(four[i], of_tile[i / 2][c + 2 * (i % 2)]);
        }
      }
    }
  }
  /// Ends with a barrier.
  __device__ __forceinline__ FloatRows put_outputs() {
    const int32_t dim = block_.arguments.head.values;
    const FloatRows rows(block_.memory, dim, output_stride(dim));
    __syncthreads();
    for_outputs(rows, [](volatile float& to, float from) { to = from; });
    __syncthreads();
    return rows;
  }
  /// Rotates outputs, or rotates them back.
  __device__ __forceinline__ void turn_outputs() {
    const FloatRows rows = put_outputs();
    float* other = rows.row(S::kRows) + block_.lane.warp * rows.stride;
#pragma unroll 1
    for (int32_t i = block_.lane.warp; i < S::kRows; i += S::kWarps) {
      turn_row(rows.row(i), other, rows.mix, block_.lane);
    }
    __syncthreads();
    for_outputs(rows, [](const volatile float& from, float& to) { to = from; });
    __syncthreads();
  }

  /// A slice of a page's side. What a lane computes from its place is not kept for every kind of pages.
  template <typename G>
  __device__ __forceinline__ PageSide<G> side_of(const G& slice, const PageLayout& layout, uint32_t address) const {
    PageSide<G> side = page_side(slice, layout, block_.lane, address);
    side.lane.g = opaque(side.lane.g);
    return side;
  }

  /// Calls `act` with the kind of values of a loop over pages.
  template <typename V, typename Do>
  __device__ __forceinline__ void visit_values(const Do& act) const {
    if constexpr (PageKind<V>) {
      act(V{});
    } else {
      PageKinds<Values>::visit(format_.values(), act);
    }
  }

  /// Scores of this warp's slice of the key side.
  template <typename V>
  __device__ __forceinline__ void score_keys(const PageLayout& layout, uint32_t at, Scores<kTiles>& scores) const {
    if constexpr (!S::kLatent) {
      const auto side = side_of(keys_, layout, at);
      if constexpr (PageKind<V>) {
        V::score(side, queries_, scores);
      } else {
        PageKinds<Keys>::visit(format_.keys(), [&](auto kind) { kind.score(side, queries_, scores); });
      }
    } else {
      if constexpr (!PageKind<V>) {
        if (!few_keys_) {
          const auto side = side_of(keys_, layout, at);
          PageKinds<Keys>::visit(format_.keys(), [&](auto kind) { score_few<decltype(kind)>(side, scores); });
          return;
        }
      }
      const FewKeys few{keys_.dim, keys_.first, keys_.end};
      const auto side = side_of(few, layout, at);
      if (format_.keys().is_float16()) {
        score_few<Float16Page>(side, scores);
      } else {
        score_few<Int8Page>(side, scores);
      }
    }
  }
  /// With queries from shared memory, since those that meet common channels fill the registers.
  template <typename K, typename G>
  __device__ __forceinline__ void score_few(const PageSide<G>& side, Scores<kTiles>& scores) const {
    constexpr KeyOrder kOrder = K::kOrder;
    QueryFragments<G> queries;
    load_key_queries<G>(reinterpret_cast<const __half*>(block_.memory + block_.at.key_rows), key_stride_, kOrder,
                        K::kCode.has_gains(), queries);
    K::score(side, queries, scores);
  }

  /// Scores of this warp's channels of a page.
  template <typename V>
  __device__ __forceinline__ void score(const PageLayout& layout, uint32_t keys_at, uint32_t values_at,
                                        const TokenGains& gains, Scores<kTiles>& scores) const {
    const Lane& lane = block_.lane;
    clear(scores);
    if (!keys_.is_empty()) score_keys<V>(layout, keys_at, scores);
    if constexpr (S::kLatent) {
      if (values_.is_empty()) return;
      float row_scale[kTiles][2];
#pragma unroll
      for (int32_t i = 0; i < 2 * kTiles; ++i) {
        row_scale[i / 2][i % 2] = block_.header().row_scale[8 * (i / 2) + 2 * lane.t + i % 2];
      }
      const auto side = side_of(values_, layout, values_at);
      visit_values<V>([&](auto kind) {
        score_common<decltype(kind)>(side, gains, common_queries_, row_scale, &block_.header().common_sums[0][0],
                                     scores);
      });
      if (lane.warp != 0 || !scales_of(block_.arguments, block_.unit)) return;
#pragma unroll
      for (int32_t i = 0; i < 8 * kTiles; ++i) {
        scores[i / 8][i / 4 % 2][i % 4] += block_.header().row_bias[8 * (i / 8) + 2 * lane.t + i % 2];
      }
    }
  }

  /// Computed anew, so that addresses are not kept in registers for a page.
  __device__ __forceinline__ Lane lane() const {
    const int32_t index = opaque(block_.lane.index);
    return {block_.lane.warps, block_.lane.warp, index, index / 4, index % 4};
  }

  // Of a page's scores, a warp weighs those of one tile of rows and of some tiles of tokens: [tile][row of two].
  using Part = float[kPart][2];

  __device__ __forceinline__ int32_t row_tile() const { return lane().warp / kTileWarps; }
  __device__ __forceinline__ int32_t first_tile() const { return lane().warp % kTileWarps * kPart; }

  __device__ __forceinline__ void put_scores(const Scores<kTiles>& scores) const {
    auto* to =
        reinterpret_cast<float4*>(block_.memory + block_.at.exchange) + lane().warp * 2 * kTiles * 32 + lane().index;
#pragma unroll
    for (int32_t i = 0; i < 2 * kTiles; ++i) {
      const float(&four)[4] = scores[i / 2][i % 2];
      to[32 * i] = {four[0], four[1], four[2], four[3]};
    }
  }
  /// Sums this warp's part over all warps.
  __device__ __forceinline__ void get_scores(Part& part) const {
    const int32_t at = (2 * row_tile() + first_tile() / 2) * 32 + lane().index;
    const float* from =
        reinterpret_cast<const float*>(block_.memory + block_.at.exchange) + 4 * at + 2 * (first_tile() % 2);
#pragma unroll
    for (int32_t w = 0; w < S::kWarps; ++w) {
      const float* of_warp = from + w * 2 * kTiles * 32 * 4;
      using Numbers = std::conditional_t<kPart == 2, float4, float2>;
      const auto numbers = *reinterpret_cast<const Numbers*>(of_warp);
      float2 two[kPart];
      two[0] = {numbers.x, numbers.y};
      if constexpr (kPart == 2) two[kPart - 1] = {numbers.z, numbers.w};
#pragma unroll
      for (int32_t i = 0; i < kPart; ++i) {
        part[i][0] = w == 0 ? two[i].x : part[i][0] + two[i].x;
        part[i][1] = w == 0 ? two[i].y : part[i][1] + two[i].y;
      }
    }
  }

  /// Caps scores, and masks those of tokens that a row does not see.
  __device__ __forceinline__ void limit(int32_t index, bool masked, Part& part) const {
    const AttendArguments& arguments = block_.arguments;
    if (arguments.softcap > 0.0F) {
#pragma unroll
      for (int32_t i = 0; i < 2 * kPart; ++i) {
        float& x = part[i / 2][i % 2];
        x = arguments.softcap * tanhf(x / arguments.softcap);
      }
    }
    if (!masked) return;
    const uint4 record = __ldg(reinterpret_cast<const uint4*>(records()) + index);
    const DevicePage page = page_of(record.z, record.w);
    const MaskedUnit unit_rows{arguments, block_.unit, block_.rows, range_.first_masked};
#pragma unroll
    for (int32_t i = 0; i < kPart; ++i) {
      const int32_t slot = token_of(lane().g, first_tile() + i);
      const bool held = slot < page.count();
      const int32_t position = held ? position_in_page(arguments, block_.unit, page, index, slot) : 0;
#pragma unroll
      for (int32_t c = 0; c < 2; ++c) {
        const int32_t row = 8 * row_tile() + 2 * lane().t + c;
        const int32_t of_row = block_.header().row_position[row];
        const bool seen = held && sees_slot(unit_rows, row, of_row, index * kSlots + slot, position);
        if (!seen) part[i][c] = minus_infinity();
      }
    }
  }

  /// What weights of this warp's rows are relative to.
  __device__ __forceinline__ float own_reference(int32_t c) const {
    return kTiles == 2 && row_tile() == 1 ? reference_[kTiles - 1][c] : reference_[0][c];
  }

  __device__ __forceinline__ uint8_t* weights() const { return block_.memory + block_.at.weights; }
  /// Stores weights, times the gains of values, and sums them without gains.
  __device__ __forceinline__ void put_weights(const Part& part, const float (&gains)[kPart], float (&sums)[2]) const {
    const Lane lane = this->lane();
    float reference[2];
#pragma unroll
    for (int32_t c = 0; c < 2; ++c) {
      reference[c] = own_reference(c) == minus_infinity() ? 0.0F : own_reference(c);
      sums[c] = 0.0F;
    }
#pragma unroll
    for (int32_t i = 0; i < kPart; ++i) {
      float e[2];
#pragma unroll
      for (int32_t c = 0; c < 2; ++c) {
        e[c] = exp2_fast(part[i][c] - reference[c]);
        sums[c] += e[c];
      }
      uint8_t* to = weights() + (4 * row_tile() + first_tile() + i) * 128 + 16 * lane.g + 4 * lane.t;
      *reinterpret_cast<uint32_t*>(to) = pack(e[0] * gains[i], e[1] * gains[i]);
    }
  }

  /// Raises references above a page's highest scores, with some room, so that most pages of a long list do not.
  __device__ __forceinline__ void raise(const Part& part) {
    SliceHeader<S>& header = block_.header();
#pragma unroll
    for (int32_t c = 0; c < 2; ++c) {
      float highest = part[0][c];
      if constexpr (kPart == 2) highest = fmaxf(highest, part[kPart - 1][c]);
      highest = fmaxf(highest, __shfl_xor_sync(kAll, highest, 4));
      highest = fmaxf(highest, __shfl_xor_sync(kAll, highest, 8));
      highest = fmaxf(highest, __shfl_xor_sync(kAll, highest, 16));
      if (lane().g == 0) header.maxima[lane().warp][2 * lane().t + c] = highest;
    }
    __syncthreads();
#pragma unroll
    for (int32_t i = 0; i < 2 * kTiles; ++i) {
      constexpr float kRoom = 2.0F;
      float& reference = reference_[i / 2][i % 2];
      float highest = minus_infinity();
#pragma unroll
      for (int32_t w = 0; w < kTileWarps; ++w) {
        highest = fmaxf(highest, header.maxima[i / 2 * kTileWarps + w][2 * lane().t + i % 2]);
      }
      const float raised = highest > reference ? highest + kRoom : reference;
      const float factor = raised == minus_infinity() ? 1.0F : exp2_fast(reference - raised);
      reference = raised;
      rescale(outputs_, i / 2, i % 2, factor);
      if (i / 2 == row_tile()) sum_[i % 2] *= factor;
    }
  }

  /// The gain of one tile, chosen so that gains stay in registers.
  __device__ __forceinline__ static float of_tile(const TokenGains& gains, int32_t tile) {
    const float low = tile % 2 != 0 ? gains.of[1] : gains.of[0];
    const float high = tile % 2 != 0 ? gains.of[3] : gains.of[2];
    return tile >= 2 ? high : low;
  }

  /// Makes the weights of a page's values from this warp's part of scores. Ends with a barrier.
  __device__ __forceinline__ void weigh(const Part& part, const TokenGains& of_tiles) {
    float gains[kPart];
    bool rises = false;
#pragma unroll
    for (int32_t i = 0; i < kPart; ++i) {
      gains[i] = of_tile(of_tiles, first_tile() + i);
      rises = rises || part[i][0] > own_reference(0) || part[i][1] > own_reference(1);
    }
    float sums[2];
    put_weights(part, gains, sums);
    if (__syncthreads_or(rises ? 1 : 0) != 0) {
      raise(part);
      put_weights(part, gains, sums);
      __syncthreads();
    }
    sum_[0] += sums[0];
    sum_[1] += sums[1];
  }

  template <typename V>
  __device__ __forceinline__ void add_values(const PageLayout& layout, uint32_t address) {
    if (values_.is_empty()) return;
    Weights<kTiles> p;
#pragma unroll
    for (int32_t n = 0; n < kTiles; ++n) {
      load_transposed(shared_address(weights()) + static_cast<uint32_t>(512 * n + 16 * lane().index), p[n]);
    }
    const auto side = side_of(values_, layout, address);
    visit_values<V>([&](auto kind) { kind.add_values(side, p, outputs_); });
  }

  __device__ __forceinline__ TokenGains gains_of(const PageLayout& layout, CodeType code, uint32_t values_at) const {
    if (!code.has_gains()) return {{1.0F, 1.0F, 1.0F, 1.0F}};
    return load_value_gains(side_of(values_, layout, values_at), code);
  }

  /// Kinds with a loop of their own, without choices inside.
  using LoopKinds = KindList<PageTypeOf<CodeType::gain_scalar(4)>::Type, PageTypeOf<CodeType::gain_scalar(2)>::Type,
                             Int4Page, Float16Page>;
  struct AnyKind {};

  /// Pages [first, end), which have the format entered.
  __device__ __forceinline__ void walk(int32_t first, int32_t end) {
    const bool special = S::kLatent ? !few_keys_ : format_.keys() != format_.values();
    if (special || !LoopKinds::has(format_.values())) {
      walk_pages<AnyKind>(first, end);
    } else {
      LoopKinds::visit(format_.values(), [&](auto kind) { walk_pages<decltype(kind)>(first, end); });
    }
  }

  /// `V`: the kind of values, and of keys but of a latent.
  template <typename V>
  __device__ __forceinline__ void walk_pages(int32_t first, int32_t end) {
    const CopyRing ring{shared_address(block_.memory), block_.launch.ring_bytes,
                        shared_address(block_.header().arrived)};
    const PageLayout& layout = block_.header().layout;
    RunCopies copies(block_.arguments.head, records() + first, block_.lane, ring, layout, end - first, SteppedSides{1},
                     2);
    const bool by_side = copies.by_side();
    CodeType code = format_.values();
    if constexpr (PageKind<V>) code = V::kCode;
    copies.start();
    if (!code.is_float16()) scale(outputs_, 1.0F / code_scale(code));
    uint32_t masked = 0;
    int32_t before = 0;  // copies that are not done, before this page's: the previous page or its values
#pragma unroll 1
    for (int32_t index = first; index < end; ++index) {
      const int32_t of_batch = (index - first) % 32;
      if (of_batch == 0) masked = masked_pages(block_.arguments, records(), lane(), range_, index, end);
      copies.wait(before, 1, parity_);
      const uint32_t keys_at = copies.address(before);
      uint32_t values_at = keys_at + static_cast<uint32_t>(layout.values_at);
      TokenGains gains{};
      if constexpr (S::kLatent) gains = gains_of(layout, code, values_at);
      Scores<kTiles> scores;
      score<V>(layout, keys_at, values_at, gains, scores);
      put_scores(scores);
      __syncthreads();  // scores are there; all warps have left the page before and, by side, these keys
      copies.leave(before + (by_side ? 1 : 0));
      copies.start();
      before = 1;
      Part part;
      get_scores(part);
      limit(index, (masked >> of_batch & 1U) != 0, part);
      if (by_side) {
        copies.wait(0, 1, parity_);
        values_at = copies.address(0);
      }
      if constexpr (!S::kLatent) gains = gains_of(layout, code, values_at);
      weigh(part, gains);
      add_values<V>(layout, values_at);
    }
    if (!code.is_float16()) finish_codes(outputs_, code_scale(code), layout.group_shift, block_.lane, values_.first);
  }

  const SliceBlock<S>& block_;
  const VisibleRange range_;
  Keys keys_{};
  Values values_{};
  FormatCode format_{};  // entered
  bool entered_ = false;
  bool few_keys_ = false;
  uint32_t parity_ = 0;
  int32_t key_stride_ = 0;
  QueryFragments<Keys> queries_;  // but of latents
  CommonQueries<Values> common_queries_;
  float reference_[kTiles][2];  // of rows 8n + 2t + c, the same in all warps; no score so far is above it
  float sum_[2] = {};           // of this warp's part
  Outputs<Values> outputs_;
};

template <typename S>
__global__ void __launch_bounds__(S::kThreads, 2)
    slice_kernel(const __grid_constant__ AttendArguments arguments, const __grid_constant__ WideLaunch launch) {
  extern __shared__ __align__(1024) uint8_t memory[];
  const Lane lane = this_lane();
  const BlockWork work = block_work<S::kRows>(arguments, launch);
  if (work.rows <= 0) return;
  const SliceBlock<S> block{arguments, launch,    memory, SlicePlaces::of<S>(arguments.head, launch.ring_bytes),
                            work.unit, work.rows, lane};
  SliceHeader<S>& header = block.header();
  put_row_positions<S::kRows>(arguments, work, header.row_position);
  make_stage_barriers(header.arrived);
  const VisibleRange range{positions_of(header.row_position, 0, work.rows), first_masked(arguments, work.unit)};
  const PageParts parts = page_parts(arguments, launch, work.unit, lane, range);
  SliceWalk<S> walk(block, range);
#pragma unroll 1
  for (int32_t i = 0; i < 2; ++i) walk.run(i == 0 ? parts.first : parts.second);
  walk.finish();
}

}  // namespace kvq::cuda
