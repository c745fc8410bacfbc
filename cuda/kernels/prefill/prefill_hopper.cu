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

/// Channels of keys and of values.
template <int kKeys, int kValues>
struct Widths {
  static constexpr int32_t kKeyWidth = kKeys;
  static constexpr int32_t kValueWidth = kValues;
  /// Tokens per step: outputs of wide heads leave few registers for scores, and their tiles little shared memory.
  static constexpr int32_t kTokens = kKeys <= 128 && kValues <= 128 ? kTileTokens : kTileTokens / 2;
  static constexpr int32_t kSteps = kTileTokens / kTokens;   // per tile
  static constexpr int32_t kKeyBytes = 2 * kTokens * kKeys;  // of a step
  static constexpr int32_t kValueBytes = 2 * kTokens * kValues;
};

/// Shared memory of a block.
template <typename W>
struct PrefillShared {
  alignas(1024) uint8_t queries[kConsumers][kGroupRows * W::kKeyWidth * 2];  // planes of 64 channels, a row per query
  alignas(1024) uint8_t keys[kTileStages][W::kKeyBytes];
  alignas(1024) uint8_t values[kTileStages][W::kValueBytes];
  float scratch[4 * kConsumers][kRotatedRows * W::kKeyWidth];  // of a warp
  float row_scale[kBlockRows];
  int32_t row_position[kBlockRows];
  uint64_t keys_arrived[kTileStages];
  uint64_t values_arrived[kTileStages];
  uint64_t keys_free[kTileStages];
  uint64_t values_free[kTileStages];
};

using TileState = PipelineState<kTileStages>;

/// Copies steps `begin` to `end` of a head, last to first, as stages become free.
template <typename W>
__device__ __forceinline__ void produce(const Tiles& tiles, int32_t first_tile, int32_t begin, int32_t end,
                                        PrefillShared<W>& shared) {
  constexpr int32_t kPlaneBytes = W::kTokens * 128;
  TileState state;
#pragma unroll 1
  for (int32_t step = end - 1; step >= begin; --step) {
    const auto tile = static_cast<size_t>(first_tile + step / W::kSteps);
    const std::byte* keys = tiles.keys + tile * tile_bytes(W::kKeyWidth);
    const std::byte* values = tiles.values + tile * tile_bytes(W::kValueWidth);
    const int32_t of_tile = step % W::kSteps;
    const int32_t stage = state.stage;
    wait_copy(shared_address(&shared.keys_free[stage]), state.parity ^ 1U);
    expect_bytes(shared.keys_arrived[stage], W::kKeyBytes);
    if constexpr (W::kSteps == 1) {
      copy_bytes(shared.keys[stage], keys, W::kKeyBytes, shared.keys_arrived[stage]);
    } else {
      for (int32_t plane = 0; plane < W::kKeyWidth / 64; ++plane) {
        copy_bytes(shared.keys[stage] + plane * kPlaneBytes, keys + (plane * W::kSteps + of_tile) * kPlaneBytes,
                   kPlaneBytes, shared.keys_arrived[stage]);
      }
    }
    wait_copy(shared_address(&shared.values_free[stage]), state.parity ^ 1U);
    expect_bytes(shared.values_arrived[stage], W::kValueBytes);
    copy_bytes(shared.values[stage], values + of_tile * W::kValueBytes, W::kValueBytes, shared.values_arrived[stage]);
    state.advance();
  }
}

/// A warpgroup's rows.
template <typename W>
struct Consumer {
  static constexpr int32_t kTokens = W::kTokens;
  using Scores = float[kTokens / 2];
  using Weights = uint32_t[kTokens / 16][4];

  const AttendArguments& arguments;
  const Tiles& tiles;
  const Work& work;
  PrefillShared<W>& shared;
  const TileTokens* tokens;  // tile 0 of the head
  int32_t group;
  int32_t first_masked;  // slot; INT32_MAX: none
  int32_t row;           // the lane's first one
  RowPair rows;
  QueryRange range;  // positions of the warpgroup's rows
  float outputs[W::kValueWidth / 2];

  __device__ __forceinline__ void multiply_keys(int32_t stage, Scores& scores) const {
    const uint64_t queries = describe_plane<128>(shared_address(shared.queries[group]));
    const uint64_t keys = describe_plane<128>(shared_address(shared.keys[stage]));
#pragma unroll
    for (int32_t i = 0; i < W::kKeyWidth / 16; ++i) {
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
      multiply_registers(outputs, weights[i],
                         values + static_cast<uint64_t>(i / 2 * (W::kValueWidth * 64 >> 4) + i % 2 * 2));
    }
    commit_products();
  }

  /// First and last position of a step's tile, loaded ahead of use.
  __device__ __forceinline__ int2 tile_range(int32_t step) const {
    return __ldg(reinterpret_cast<const int2*>(&tokens[step / W::kSteps].first));
  }

  __device__ __forceinline__ void weigh(int32_t step, const int2& of_tile, Scores& scores, float (&factors)[2]) {
    const bool capped = arguments.softcap > 0.0F;
    if (capped) cap_rows(arguments.softcap, rows, scores);
    const int32_t window = arguments.window;
    const bool partial = of_tile.y > range.first || (window != 0 && of_tile.x <= newest_hidden(range.last, window));
    const int32_t* positions = tokens[step / W::kSteps].positions + step % W::kSteps * kTokens;
    const auto t = static_cast<int32_t>(threadIdx.x % 4);
    if (step / W::kSteps >= masked_tile(first_masked)) {
      mask_slots({arguments, work, row, step * kTokens - first_masked}, positions, rows, t, scores);
    } else if (partial) {
      mask_rows(positions, window, rows, t, scores);
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
template <typename W, bool kRotated>
__global__ void __launch_bounds__(kThreads, 1)
    prefill_kernel(const __grid_constant__ AttendArguments arguments, const __grid_constant__ Tiles tiles) {
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& shared = *reinterpret_cast<PrefillShared<W>*>(memory);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t warpgroup = __shfl_sync(kAll, thread / 128, 0);
  const Work work = work_of<kBlockRows>(arguments, tiles, static_cast<int32_t>(blockIdx.x));
  if (work.tiles < 0) return;
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
  const int32_t masked = first_masked(arguments, work.unit);
  const TileRun run = visible_tiles(tiles.tokens + work.first_tile, work.tiles, range.first, range.last,
                                    arguments.window, masked_tile(masked), work.part, tiles.parts);
  const int32_t begin = W::kSteps * run.begin;
  int32_t end = W::kSteps * run.end;
  if (W::kSteps > 1 && end > begin &&
      arguments.mask.bits == nullptr) {  // the last tile's second half may be behind all rows
    const int32_t* positions = tiles.tokens[work.first_tile + run.end - 1].positions;
    if (__ldg(positions + W::kTokens) > range.last) --end;
  }
  if (warpgroup == kConsumers) {
    give_registers<24>();
    if (thread == 128 * kConsumers) produce<W>(tiles, work.first_tile, begin, end, shared);
    return;
  }
  take_registers<240>();
  const int32_t warp_row = kGroupRows * warpgroup + thread % 128 / 32 * 16;
  load_query_rows<W::kKeyWidth, kGroupRows, kRotated>(
      arguments, work.unit, work.rows, warp_row,
      {shared.queries[warpgroup], shared.row_scale, shared.row_position, shared.scratch[thread / 32]});
  order_before_copies();
  wait_at(kFirstGroup + warpgroup, 128);
  const int32_t mine = warp_row + thread % 32 / 4;
  Consumer<W> consumer{arguments, tiles, work, shared, tiles.tokens + work.first_tile, warpgroup, masked,
                       mine,      {},    {},   {}};
#pragma unroll
  for (int32_t h = 0; h < 2; ++h) {
    consumer.rows.scale[h] = shared.row_scale[mine + 8 * h];
    consumer.rows.position[h] = shared.row_position[mine + 8 * h];
  }
  consumer.range = positions_of(shared.row_position, kGroupRows * warpgroup, kGroupRows * (warpgroup + 1));
  consumer.run(begin, end);
  float* partial = nullptr;
  if (tiles.merges()) partial = tiles.partials + blockIdx.x * partial_floats(kBlockRows, W::kValueWidth);
  write_rows<W::kValueWidth, kBlockRows>(arguments, work.unit, work.rows, mine, consumer.rows, consumer.outputs,
                                         partial);
}

template <typename W>
cudaError_t launch(const AttendArguments& arguments, const Tiles& tiles, cudaStream_t stream) {
  const auto kernel = tiles.rotated_keys != 0 ? prefill_kernel<W, true> : prefill_kernel<W, false>;
  return launch_blocks(kernel, kThreads, sizeof(PrefillShared<W>), kBlockRows, arguments, tiles, stream);
}

template <int kKeys, int kValues>
PrefillKernel kernel() {
  return {.key_width = kKeys,
          .value_width = kValues,
          .block_rows = kBlockRows,
          .blocks = 1,
          .least_rows = 320,
          .launch = launch<Widths<kKeys, kValues>>};
}

}  // namespace

PrefillKernel hopper_prefill(const HeadShape& head) {
  if (head.largest() <= 64) return kernel<64, 64>();
  if (head.largest() <= 128) return kernel<128, 128>();
  if (head.keys <= 192 && head.values <= 128) return kernel<192, 128>();
  return kernel<256, 256>();
}

}  // namespace kvq::cuda
