#include "kernels/device/bulk_copies.cuh"
#include "kernels/device/warpgroup.cuh"
#include "kernels/prefill/rows.cuh"

namespace kvq::cuda {
namespace {

constexpr int32_t kConsumers = 2;  // warpgroups
constexpr int32_t kBlockRows = 128;
constexpr int32_t kGroupRows = kBlockRows / kConsumers;
constexpr int32_t kTileStages = 2;
constexpr int32_t kThreads = 128 * (kConsumers + 1);
constexpr int32_t kFirstOrder = 1;                         // named barriers that alternate the groups' products
constexpr int32_t kFirstGroup = kFirstOrder + kConsumers;  // named barrier of each warpgroup alone

/// Tokens per step: outputs of wide heads leave few registers for scores.
template <int D>
inline constexpr int32_t kStepTokens = D <= 128 ? kTileTokens : kTileTokens / 2;
template <int D>
inline constexpr int32_t kSteps = kTileTokens / kStepTokens<D>;  // per tile
/// Bytes of a step's keys, or of its values.
template <int D>
inline constexpr int32_t kStepBytes = 2 * kStepTokens<D>* D;

/// Shared memory of a block.
template <int D>
struct PrefillShared {
  alignas(1024) uint8_t queries[kConsumers][kGroupRows * D * 2];  // [D / 64] planes with one row per query
  alignas(1024) uint8_t keys[kTileStages][kStepBytes<D>];
  alignas(1024) uint8_t values[kTileStages][kStepBytes<D>];
  float scratch[4 * kConsumers][kRotatedRows * D];  // of a warp
  float row_scale[kBlockRows];
  int32_t row_position[kBlockRows];
  uint64_t keys_arrived[kTileStages];
  uint64_t values_arrived[kTileStages];
  uint64_t keys_free[kTileStages];
  uint64_t values_free[kTileStages];
};

using TileState = PipelineState<kTileStages>;

/// Copies steps `begin` to `end` of a head, last to first, as stages become free.
template <int D>
__device__ __forceinline__ void produce(const Tiles& tiles, int32_t first_tile, int32_t begin, int32_t end,
                                        PrefillShared<D>& shared) {
  constexpr int32_t kBytes = kStepBytes<D>;
  constexpr int32_t kPlaneBytes = kStepTokens<D> * 128;
  TileState state;
#pragma unroll 1
  for (int32_t step = end - 1; step >= begin; --step) {
    const size_t at = static_cast<size_t>(first_tile + step / kSteps<D>) * tile_bytes(D);
    const int32_t of_tile = step % kSteps<D>;
    const int32_t stage = state.stage;
    wait_copy(shared_address(&shared.keys_free[stage]), state.parity ^ 1U);
    expect_bytes(shared.keys_arrived[stage], kBytes);
    if constexpr (kSteps<D> == 1) {
      copy_bytes(shared.keys[stage], tiles.keys + at, kBytes, shared.keys_arrived[stage]);
    } else {
      for (int32_t plane = 0; plane < D / 64; ++plane) {
        copy_bytes(shared.keys[stage] + plane * kPlaneBytes,
                   tiles.keys + at + (plane * kSteps<D> + of_tile) * kPlaneBytes, kPlaneBytes,
                   shared.keys_arrived[stage]);
      }
    }
    wait_copy(shared_address(&shared.values_free[stage]), state.parity ^ 1U);
    expect_bytes(shared.values_arrived[stage], kBytes);
    copy_bytes(shared.values[stage], tiles.values + at + of_tile * kBytes, kBytes, shared.values_arrived[stage]);
    state.advance();
  }
}

/// A warpgroup's rows.
template <int D>
struct Consumer {
  static constexpr int32_t kTokens = kStepTokens<D>;
  using Scores = float[kTokens / 2];
  using Weights = uint32_t[kTokens / 16][4];

  const AttendArguments& arguments;
  PrefillShared<D>& shared;
  const TileTokens* tokens;  // tile 0 of the head
  int32_t group;
  RowPair rows;
  QueryRange range;  // positions of the warpgroup's rows
  float outputs[D / 2];

  __device__ __forceinline__ void multiply_keys(int32_t stage, Scores& scores) const {
    const uint64_t queries = describe_plane<128>(shared_address(shared.queries[group]));
    const uint64_t keys = describe_plane<128>(shared_address(shared.keys[stage]));
#pragma unroll
    for (int32_t i = 0; i < D / 16; ++i) {
      const auto within = static_cast<uint64_t>(i % 4 * 2);
      multiply_planes(scores, queries + static_cast<uint64_t>(i / 4 * (kGroupRows * 128 >> 4)) + within,
                      keys + static_cast<uint64_t>(i / 4 * (kTokens * 128 >> 4)) + within, i > 0);
    }
    commit_products();
  }

  __device__ __forceinline__ void multiply_values(int32_t stage, const Weights& weights) {
    const uint64_t values = describe_plane<64>(shared_address(shared.values[stage]));
#pragma unroll
    for (int32_t i = 0; i < kTokens / 16; ++i) {
      multiply_registers(outputs, weights[i], values + static_cast<uint64_t>(i / 2 * (D * 64 >> 4) + i % 2 * 2));
    }
    commit_products();
  }

  /// First and last position of a step's tile, loaded ahead of use.
  __device__ __forceinline__ int2 tile_range(int32_t step) const {
    return __ldg(reinterpret_cast<const int2*>(&tokens[step / kSteps<D>].first));
  }

  __device__ __forceinline__ void weigh(int32_t step, const int2& of_tile, Scores& scores, float (&factors)[2]) {
    const bool capped = arguments.softcap > 0.0F;
    if (capped) cap_rows(arguments.softcap, rows, scores);
    const int32_t window = arguments.window;
    const bool partial =
        of_tile.y > range.first || (window > 0 && of_tile.x <= static_cast<int64_t>(range.last) - window);
    if (partial) {
      mask_rows(tokens[step / kSteps<D>].positions + step % kSteps<D> * kTokens, window, rows,
                static_cast<int32_t>(threadIdx.x % 4), scores);
    }
    const float scale[2] = {capped ? 1.0F : rows.scale[0], capped ? 1.0F : rows.scale[1]};
    weigh_rows(scale, rows, scores, factors);
  }

  /// Releases a stage after the warp has waited for its products.
  __device__ __forceinline__ static void leave(uint64_t& barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(barrier);
  }

  /// Warpgroups alternate in starting products: the softmax of one overlaps the products of the other.
  __device__ __forceinline__ void take_turn() const { wait_at(kFirstOrder + group, 2 * 128); }
  __device__ __forceinline__ void pass_turn() const { arrive_at(kFirstOrder + (group ^ 1), 2 * 128); }

  /// Steps `begin` to `end`, last to first: the tokens that few rows see come first.
  __device__ __forceinline__ void run(int32_t begin, int32_t end) {
#pragma unroll
    for (float& each : outputs) each = 0.0F;
    if (begin == end) return;
    if (group == 1) arrive_at(kFirstOrder, 2 * 128);
    TileState keys;
    TileState values;
    Scores scores;
    float factors[2];
    Weights weights;
    int2 of_tile = tile_range(end - 1);
    wait_copy(shared_address(&shared.keys_arrived[0]), 0);
    take_turn();
    begin_products();
    multiply_keys(0, scores);
    pass_turn();
    wait_products<0>();
    hold(scores);
    weigh(end - 1, of_tile, scores, factors);
    leave(shared.keys_free[0]);
    pack_weights(scores, weights);
    keys.advance();
#pragma unroll 1
    for (int32_t step = end - 2; step >= begin; --step) {
      of_tile = tile_range(step);
      wait_copy(shared_address(&shared.keys_arrived[keys.stage]), keys.parity);
      take_turn();
      begin_products();
      multiply_keys(keys.stage, scores);
      wait_copy(shared_address(&shared.values_arrived[values.stage]), values.parity);
      multiply_values(values.stage, weights);
      pass_turn();
      wait_products<1>();
      hold(scores);
      weigh(step, of_tile, scores, factors);
      leave(shared.keys_free[keys.stage]);
      wait_products<0>();
      hold(outputs);
      leave(shared.values_free[values.stage]);
      scale_rows(factors, outputs);
      pack_weights(scores, weights);
      keys.advance();
      values.advance();
    }
    wait_copy(shared_address(&shared.values_arrived[values.stage]), values.parity);
    begin_products();
    multiply_values(values.stage, weights);
    wait_products<0>();
    hold(outputs);
  }
};

/// kRotated: keys are, and queries must be. A separate kernel, because its instructions would slow down blocks that do
/// not need them.
template <int D, bool kRotated>
__global__ void __launch_bounds__(kThreads, 1)
    prefill_kernel(const __grid_constant__ AttendArguments arguments, const __grid_constant__ Tiles tiles) {
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& shared = *reinterpret_cast<PrefillShared<D>*>(memory);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t warpgroup = __shfl_sync(kAll, thread / 128, 0);
  const Work work = work_of<kBlockRows>(arguments, tiles, static_cast<int32_t>(blockIdx.x));
  if (thread < kBlockRows) shared.row_position[thread] = row_position(arguments, work, thread);
  if (thread == 0) {
    for (int32_t i = 0; i < kTileStages; ++i) {
      make_barrier(shared.keys_arrived[i], 1);
      make_barrier(shared.values_arrived[i], 1);
      make_barrier(shared.keys_free[i], 4 * kConsumers);
      make_barrier(shared.values_free[i], 4 * kConsumers);
    }
    order_before_copies();
  }
  __syncthreads();
  const QueryRange range = positions_of(shared.row_position, 0, work.rows);
  const TileRun run = visible_tiles(tiles.tokens + work.first_tile, work.tiles, range.first, range.last,
                                    arguments.window, work.part, tiles.parts);
  const int32_t begin = kSteps<D> * run.begin;
  int32_t end = kSteps<D> * run.end;
  if (kSteps < D >> 1 && end > begin) {  // the last tile's second half may be behind all rows
    const int32_t* positions = tiles.tokens[work.first_tile + run.end - 1].positions;
    if (__ldg(positions + kStepTokens<D>) > range.last) --end;
  }
  if (warpgroup == kConsumers) {
    give_registers<24>();
    if (thread == 128 * kConsumers) produce<D>(tiles, work.first_tile, begin, end, shared);
    return;
  }
  take_registers<240>();
  const int32_t warp_row = kGroupRows * warpgroup + thread % 128 / 32 * 16;
  load_query_rows<D, kGroupRows, kRotated>(
      arguments, work.unit, work.rows, warp_row,
      {shared.queries[warpgroup], shared.row_scale, shared.row_position, shared.scratch[thread / 32]});
  order_before_copies();
  wait_at(kFirstGroup + warpgroup, 128);
  Consumer<D> consumer{arguments, shared, tiles.tokens + work.first_tile, warpgroup, {}, {}, {}};
  const int32_t mine = warp_row + thread % 32 / 4;
#pragma unroll
  for (int32_t h = 0; h < 2; ++h) {
    consumer.rows.scale[h] = shared.row_scale[mine + 8 * h];
    consumer.rows.position[h] = shared.row_position[mine + 8 * h];
  }
  consumer.range = positions_of(shared.row_position, kGroupRows * warpgroup, kGroupRows * (warpgroup + 1));
  consumer.run(begin, end);
  float* partial = nullptr;
  if (tiles.merges()) partial = tiles.partials + blockIdx.x * partial_floats(kBlockRows, D);
  write_rows<D, kBlockRows>(arguments, work.unit, work.rows, mine, consumer.rows, consumer.outputs, partial);
}

template <int D>
cudaError_t launch(const AttendArguments& arguments, const Tiles& tiles, cudaStream_t stream) {
  const auto kernel = tiles.rotated_keys != 0 ? prefill_kernel<D, true> : prefill_kernel<D, false>;
  return launch_blocks(kernel, kThreads, sizeof(PrefillShared<D>), kBlockRows, arguments, tiles, stream);
}

template <int D>
PrefillKernel kernel() {
  return {
      .key_width = D, .value_width = D, .block_rows = kBlockRows, .blocks = 1, .least_rows = 320, .launch = launch<D>};
}

}  // namespace

PrefillKernel hopper_prefill(int32_t head_dim) {
  if (head_dim <= 64) return kernel<64>();
  if (head_dim <= 128) return kernel<128>();
  return kernel<256>();
}

}  // namespace kvq::cuda
