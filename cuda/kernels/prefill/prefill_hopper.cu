#include "kernels/prefill/rows.cuh"

namespace kvq::cuda {
namespace {

constexpr int32_t kThreads = 128 * (kConsumers + 1);
constexpr int32_t kFirstOrder = 1;                         // named barriers that alternate the groups' products
constexpr int32_t kFirstGroup = kFirstOrder + kConsumers;  // named barrier of each warpgroup alone

/// Work of a block: a unit of 128 rows and a part of its tiles.
struct Work {
  Unit unit;
  int32_t rows;
  int32_t first_tile;
  int32_t tiles;
  TileRun run;
};

/// Copies tiles, last to first, as stages become free.
template <int D>
__device__ __forceinline__ void produce(const Tiles& tiles, const Work& work, PrefillShared<D>& shared) {
  TileState state;
#pragma unroll 1
  for (int32_t i = work.run.end - 1; i >= work.run.begin; --i) {
    const auto tile = static_cast<size_t>(work.first_tile + i);
    const int32_t stage = state.stage;
    wait_copy(shared_address(&shared.keys_free[stage]), state.parity ^ 1U);
    expect_bytes(shared.keys_arrived[stage], tile_bytes(D));
    copy_bytes(shared.keys[stage], tiles.keys + tile * tile_bytes(D), tile_bytes(D), shared.keys_arrived[stage]);
    wait_copy(shared_address(&shared.values_free[stage]), state.parity ^ 1U);
    expect_bytes(shared.values_arrived[stage], tile_bytes(D));
    copy_bytes(shared.values[stage], tiles.values + tile * tile_bytes(D), tile_bytes(D), shared.values_arrived[stage]);
    state.advance();
  }
}

/// A warpgroup's rows.
template <int D>
struct Consumer {
  const AttendArguments& arguments;
  PrefillShared<D>& shared;
  const TileTokens* tokens;  // current tile; earlier tiles precede it
  int32_t group;
  RowPair rows;
  QueryRange range;  // positions of the warpgroup's rows
  float outputs[D / 2];

  __device__ __forceinline__ void multiply_keys(int32_t stage, float (&scores)[64]) const {
    const uint64_t queries = describe_plane<128>(shared_address(shared.queries[group]));
    const uint64_t keys = describe_plane<128>(shared_address(shared.keys[stage]));
#pragma unroll
    for (int32_t i = 0; i < D / 16; ++i) {
      const auto within = static_cast<uint64_t>(i % 4 * 2);
      multiply_planes(scores, queries + static_cast<uint64_t>(i / 4 * (kGroupRows * 128 >> 4)) + within,
                      keys + static_cast<uint64_t>(i / 4 * (kTileTokens * 128 >> 4)) + within, i > 0);
    }
    commit_products();
  }

  __device__ __forceinline__ void multiply_values(int32_t stage, const uint32_t (&weights)[8][4]) {
    const uint64_t values = describe_plane<64>(shared_address(shared.values[stage]));
#pragma unroll
    for (int32_t i = 0; i < kTileTokens / 16; ++i) {
      multiply_registers(outputs, weights[i], values + static_cast<uint64_t>(i / 2 * (D * 64 >> 4) + i % 2 * 2));
    }
    commit_products();
  }

  /// First and last position of the current tile, loaded ahead of use.
  __device__ __forceinline__ int2 tile_range() const { return __ldg(reinterpret_cast<const int2*>(&tokens->first)); }

  __device__ __forceinline__ void weigh(const int2& of_tile, float (&scores)[64], float (&factors)[2]) {
    const bool capped = arguments.softcap > 0.0F;
    if (capped) cap_rows(arguments.softcap, rows, scores);
    const int32_t window = arguments.window;
    const bool partial =
        of_tile.y > range.first || (window > 0 && of_tile.x <= static_cast<int64_t>(range.last) - window);
    if (partial) mask_rows(*tokens, window, rows, static_cast<int32_t>(threadIdx.x % 4), scores);
    --tokens;
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

  __device__ __forceinline__ void run(int32_t tiles) {
#pragma unroll
    for (float& each : outputs) each = 0.0F;
    if (tiles == 0) return;
    if (group == 1) arrive_at(kFirstOrder, 2 * 128);
    TileState keys;
    TileState values;
    float scores[64];
    float factors[2];
    uint32_t weights[8][4];
    int2 of_tile = tile_range();
    wait_copy(shared_address(&shared.keys_arrived[0]), 0);
    take_turn();
    begin_products();
    multiply_keys(0, scores);
    pass_turn();
    wait_products<0>();
    hold(scores);
    weigh(of_tile, scores, factors);
    leave(shared.keys_free[0]);
    pack_weights(scores, weights);
    keys.advance();
#pragma unroll 1
    for (int32_t i = 1; i < tiles; ++i) {
      of_tile = tile_range();
      wait_copy(shared_address(&shared.keys_arrived[keys.stage]), keys.parity);
      take_turn();
      begin_products();
      multiply_keys(keys.stage, scores);
      wait_copy(shared_address(&shared.values_arrived[values.stage]), values.parity);
      multiply_values(values.stage, weights);
      pass_turn();
      wait_products<1>();
      hold(scores);
      weigh(of_tile, scores, factors);
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

/// Lowest and highest position of some rows.
__device__ __forceinline__ QueryRange positions_of(const int32_t* positions, int32_t first, int32_t end) {
  QueryRange range{INT32_MAX, INT32_MIN};
  for (int32_t row = first + static_cast<int32_t>(threadIdx.x % 32); row < end; row += 32) {
    range.first = min(range.first, positions[row]);
    range.last = max(range.last, positions[row]);
  }
  return {__reduce_min_sync(kAll, range.first), __reduce_max_sync(kAll, range.last)};
}

template <int D>
__global__ void __launch_bounds__(kThreads, 1)
    prefill_kernel(const __grid_constant__ AttendArguments arguments, const __grid_constant__ Tiles tiles) {
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& shared = *reinterpret_cast<PrefillShared<D>*>(memory);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t warpgroup = __shfl_sync(kAll, thread / 128, 0);
  // Later rows see more tokens, so they run first. Blocks of a head are adjacent to keep its tiles in the L2 cache.
  auto index = static_cast<int32_t>(blockIdx.x);
  Work work{};
  const int32_t part = index % tiles.parts;
  index /= tiles.parts;
  const int32_t row_block = tiles.row_blocks - 1 - index % tiles.row_blocks;
  const int32_t head = index / tiles.row_blocks;
  work.unit = unit_of<kBlockRows>(arguments, row_block, tiles.first_head + head);
  work.rows = row_count<kBlockRows>(arguments, work.unit);
  work.tiles = tiles.counts[work.unit.sequence];
  work.first_tile = tiles.begins[work.unit.sequence] + head * work.tiles;
  if (thread < kBlockRows) {
    const int32_t row = min(thread, work.rows - 1);
    const auto query = static_cast<int32_t>(divide(static_cast<uint32_t>(work.unit.first_row + row), arguments.group));
    shared.row_position[thread] = query_position(arguments, work.unit, query);
  }
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
  work.run = visible_tiles(tiles.tokens + work.first_tile, work.tiles, range.first, range.last, arguments.window, part,
                           tiles.parts);
  if (warpgroup == kConsumers) {
    give_registers<24>();
    if (thread == 128 * kConsumers) produce<D>(tiles, work, shared);
    return;
  }
  take_registers<240>();
  const int32_t warp_row = kGroupRows * warpgroup + thread % 128 / 32 * 16;
  load_query_rows<D>(arguments, work.unit, work.rows, warp_row, shared);
  order_before_copies();
  wait_at(kFirstGroup + warpgroup, 128);
  Consumer<D> consumer{arguments, shared, tiles.tokens + work.first_tile + work.run.end - 1, warpgroup, {}, {}, {}};
  const int32_t mine = warp_row + thread % 32 / 4;
#pragma unroll
  for (int32_t h = 0; h < 2; ++h) {
    consumer.rows.scale[h] = shared.row_scale[mine + 8 * h];
    consumer.rows.position[h] = shared.row_position[mine + 8 * h];
  }
  consumer.range = positions_of(shared.row_position, kGroupRows * warpgroup, kGroupRows * (warpgroup + 1));
  consumer.run(work.run.end - work.run.begin);
  float* partial = nullptr;
  if (tiles.parts > 1) partial = tiles.partials + blockIdx.x * prefill_partial_floats(D);
  write_rows<D>(arguments, work.unit, work.rows, mine, consumer.rows, consumer.outputs, partial);
}

/// Merges the partials of all parts into outputs, one row per warp.
template <int D>
__global__ void __launch_bounds__(256)
    merge_kernel(const __grid_constant__ AttendArguments arguments, const __grid_constant__ Tiles tiles) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const auto index = static_cast<int32_t>(blockIdx.x);
  const int32_t row_block = tiles.row_blocks - 1 - index % tiles.row_blocks;
  const Unit unit = unit_of<kBlockRows>(arguments, row_block, tiles.first_head + index / tiles.row_blocks);
  const int32_t row = static_cast<int32_t>(blockIdx.y) * 8 + static_cast<int32_t>(threadIdx.x / 32);
  if (row >= row_count<kBlockRows>(arguments, unit)) return;
  const float* partials = tiles.partials + static_cast<size_t>(index * tiles.parts) * prefill_partial_floats(D);
  RowSum whole{minus_infinity(), 0.0F};
  float x[D / 32] = {};
#pragma unroll 1
  for (int32_t part = 0; part < tiles.parts; ++part) {
    const float* from = partials + static_cast<size_t>(part) * prefill_partial_floats(D);
    const float2 both = __ldcg(reinterpret_cast<const float2*>(from) + row);
    if (both.x == minus_infinity()) continue;
    const float highest = fmaxf(whole.maximum, both.x);
    const float before = exp2_fast(whole.maximum - highest);
    const float weight = exp2_fast(both.x - highest);
    whole = {highest, fmaf(both.y, weight, whole.sum * before)};
#pragma unroll
    for (int32_t i = 0; i < D / 32; ++i) {
      x[i] = fmaf(__ldcg(from + 2 * kBlockRows + row * D + lane + 32 * i), weight, x[i] * before);
    }
  }
  const RowPlace place = row_place(arguments, unit, row);
  const float factor = finish_row(arguments, place, whole, lane == 0);
  const int64_t at = row_offset(arguments.out_strides, place) + lane;
  const LayerScales scales = scales_of(arguments, unit);
#pragma unroll
  for (int32_t i = 0; i < D / 32; ++i) {
    float output = x[i] * factor;
    if (scales) output = unscale_output(scales, unit.head, D, lane + 32 * i, output, factor * whole.sum);
    write_float(arguments.out, arguments.out_dtype, at + 32 * i, output);
  }
}

template <int D>
cudaError_t prepare() {
  return cudaFuncSetAttribute(prefill_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(PrefillShared<D>));
}

template <int D>
cudaError_t launch(const AttendArguments& arguments, const Tiles& tiles, cudaStream_t stream) {
  const auto units = static_cast<uint32_t>(tiles.row_blocks * tiles.heads);
  const uint32_t blocks = units * static_cast<uint32_t>(tiles.parts);
  prefill_kernel<D><<<blocks, kThreads, sizeof(PrefillShared<D>), stream>>>(arguments, tiles);
  if (tiles.parts > 1) merge_kernel<D><<<dim3(units, kBlockRows / 8), 256, 0, stream>>>(arguments, tiles);
  return cudaGetLastError();
}

}  // namespace

cudaError_t prepare_prefill() {
  const cudaError_t status = prepare<64>();
  return status != cudaSuccess ? status : prepare<128>();
}

cudaError_t launch_prefill(const AttendArguments& arguments, const Tiles& tiles, cudaStream_t stream) {
  return arguments.head_dim == 64 ? launch<64>(arguments, tiles, stream) : launch<128>(arguments, tiles, stream);
}

}  // namespace kvq::cuda
