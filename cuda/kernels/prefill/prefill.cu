// Products by mma.sync, in blocks of 64 or 128 rows and steps of 64 tokens, as in FlashAttention-2 (Dao 2023).
#include "kernels/device/copies.cuh"
#include "kernels/prefill/rows.cuh"

#include <algorithm>

namespace kvq::cuda {
namespace {

constexpr int32_t kStepTokens = 64;
constexpr int32_t kSteps = kTileTokens / kStepTokens;  // per tile

/// kRowTiles: 16 rows each, per warp; kStages: steps of keys, and of values, in shared memory.
template <int kKeys, int kValues, int kWarpCount, int kTilesOfRows, int kStageCount, int kBlockCount>
struct Shape {
  static constexpr int32_t kKeyWidth = kKeys;
  static constexpr int32_t kValueWidth = kValues;
  static constexpr int32_t kWarps = kWarpCount;
  static constexpr int32_t kRowTiles = kTilesOfRows;
  static constexpr int32_t kStages = kStageCount;
  static constexpr int32_t kBlocks = kBlockCount;  // per multiprocessor
  static constexpr int32_t kThreads = 32 * kWarps;
  static constexpr int32_t kRows = 16 * kRowTiles * kWarps;
  static constexpr int32_t kPlane = plane_channels(kKeys);
  static constexpr int32_t kKeyBytes = 2 * kStepTokens * kKeys;  // of a step
  static constexpr int32_t kValueBytes = 2 * kStepTokens * kValues;
  static constexpr int32_t kScratchBytes = 4 * kWarps * kRotatedRows * kKeys;  // while queries are loaded
};

template <typename S>
struct BlockMemory {
  alignas(128) uint8_t queries[2 * S::kRows * S::kKeyWidth];
  alignas(128) uint8_t keys[S::kStages][S::kKeyBytes];
  // Scratch is in the last stage of values and behind it: no values arrive there before the first barrier of Rows::run.
  alignas(128) uint8_t values[S::kStages][S::kValueBytes];
  uint8_t behind_values[std::max(S::kScratchBytes - S::kValueBytes, 16)];
  float row_scale[S::kRows];
  int32_t row_position[S::kRows];
};

/// Ends a group of copies by this thread; waits until at most kPending groups are pending.
__device__ __forceinline__ void commit_chunks() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wait_groups() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

/// A warp's rows, and the products of a block's steps.
template <typename S>
struct Rows {
  const AttendArguments& arguments;
  const Tiles& tiles;
  BlockMemory<S>& memory;
  int32_t first_tile;  // of the head
  int32_t first_row;   // of the warp
  const Work& work;
  int32_t first_masked;  // slot; INT32_MAX: none
  QueryRange range;      // positions of the warp's rows
  RowPair pairs[S::kRowTiles];
  float outputs[S::kRowTiles][S::kValueWidth / 2];

  using Scores = float[S::kRowTiles][kStepTokens / 2];
  using Weights = uint32_t[S::kRowTiles][kStepTokens / 16][4];

  __device__ __forceinline__ const TileTokens& tokens_of(int32_t step) const {
    return tiles.tokens[first_tile + step / kSteps];
  }

  /// Copies a step's keys: its rows of every plane.
  __device__ __forceinline__ void start_keys(int32_t step, int32_t stage) const {
    constexpr int32_t kPlaneBytes = 2 * kStepTokens * S::kPlane;
    const std::byte* from = tiles.keys + tile_bytes(S::kKeyWidth) * static_cast<size_t>(first_tile + step / kSteps) +
                            step % kSteps * kPlaneBytes;
    const uint32_t to = shared_address(memory.keys[stage]);
#pragma unroll
    for (int32_t i = 0; i < S::kKeyBytes / 16 / S::kThreads; ++i) {
      const int32_t at = 16 * (i * S::kThreads + static_cast<int32_t>(threadIdx.x));
      copy_chunk(to + static_cast<uint32_t>(at), from + at + at / kPlaneBytes * (kSteps - 1) * kPlaneBytes);
    }
  }
  __device__ __forceinline__ void start_values(int32_t step, int32_t stage) const {
    const std::byte* from = tiles.values +
                            tile_bytes(S::kValueWidth) * static_cast<size_t>(first_tile + step / kSteps) +
                            step % kSteps * S::kValueBytes;
    const uint32_t to = shared_address(memory.values[stage]);
#pragma unroll
    for (int32_t i = 0; i < S::kValueBytes / 16 / S::kThreads; ++i) {
      const int32_t at = 16 * (i * S::kThreads + static_cast<int32_t>(threadIdx.x));
      copy_chunk(to + static_cast<uint32_t>(at), from + at);
    }
  }

  __device__ __forceinline__ void multiply_keys(int32_t stage, Scores& scores) const {
    constexpr int32_t kPlane = S::kPlane;
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const uint32_t queries =
        shared_address(memory.queries) +
        static_cast<uint32_t>(plane_chunk_at(kPlane, S::kRows, first_row + lane % 16, lane / 16 * 8));
    const uint32_t keys =
        shared_address(memory.keys[stage]) +
        static_cast<uint32_t>(plane_chunk_at(kPlane, kStepTokens, lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8));
#pragma unroll
    for (int32_t m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
      for (float& each : scores[m]) each = 0.0F;
    }
#pragma unroll
    for (int32_t i = 0; i < S::kKeyWidth / 16; ++i) {
      const auto within = static_cast<uint32_t>(16 * i % kPlane * 2);  // the permutation is an exclusive or
      const int32_t plane = 16 * i / kPlane;
      uint32_t a[S::kRowTiles][4];
#pragma unroll
      for (int32_t m = 0; m < S::kRowTiles; ++m) {
        load_blocks((queries ^ within) + static_cast<uint32_t>((plane * S::kRows + 16 * m) * kPlane * 2), a[m]);
      }
#pragma unroll
      for (int32_t n = 0; n < kStepTokens / 16; ++n) {
        uint32_t b[4];
        load_blocks((keys ^ within) + static_cast<uint32_t>((plane * kStepTokens + 16 * n) * kPlane * 2), b);
#pragma unroll
        for (int32_t m = 0; m < S::kRowTiles; ++m) {
          multiply_block(scores[m] + 8 * n, a[m], b[0], b[1]);
          multiply_block(scores[m] + 8 * n + 4, a[m], b[2], b[3]);
        }
      }
    }
  }

  __device__ __forceinline__ void multiply_values(int32_t stage, const Weights& weights) {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const uint32_t values = shared_address(memory.values[stage]) +
                            static_cast<uint32_t>(value_chunk_at(lane / 8 % 2 * 8, lane / 16 * 8 + lane % 8));
#pragma unroll
    for (int32_t i = 0; i < kStepTokens / 16; ++i) {
      const auto within = static_cast<uint32_t>(i % 2 * 32);
#pragma unroll
      for (int32_t n = 0; n < S::kValueWidth / 16; ++n) {
        uint32_t b[4];
        load_blocks((values ^ within) + static_cast<uint32_t>((i / 2 * S::kValueWidth + 16 * n) * 64), b);
#pragma unroll
        for (int32_t m = 0; m < S::kRowTiles; ++m) {
          multiply_block(outputs[m] + 8 * n, weights[m][i], b[0], b[1]);
          multiply_block(outputs[m] + 8 * n + 4, weights[m][i], b[2], b[3]);
        }
      }
    }
  }

  __device__ __forceinline__ static void multiply_block(float* c, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    mma(*reinterpret_cast<float(*)[4]>(c), a, b0, b1);
  }

  __device__ __forceinline__ void weigh(int32_t step, Scores& scores, Weights& weights) {
    const TileTokens& tokens = tokens_of(step);
    const int2 of_tile = __ldg(reinterpret_cast<const int2*>(&tokens.first));
    const bool capped = arguments.softcap > 0.0F;
    const int32_t window = arguments.window;
    const bool partial = of_tile.y > range.first || (window != 0 && of_tile.x <= newest_hidden(range.last, window));
#pragma unroll
    for (int32_t m = 0; m < S::kRowTiles; ++m) {
      RowPair& rows = pairs[m];
      if (capped) cap_rows(arguments.softcap, rows, scores[m]);
      const int32_t* positions = tokens.positions + step % kSteps * kStepTokens;
      const auto t = static_cast<int32_t>(threadIdx.x % 4);
      if (step / kSteps >= masked_tile(first_masked)) {
        const int32_t row = first_row + 16 * m + static_cast<int32_t>(threadIdx.x % 32 / 4);
        mask_slots({arguments, work, row, step * kStepTokens - first_masked}, positions, rows, t, scores[m]);
      } else if (partial) {
        mask_rows(positions, window, rows, t, scores[m]);
      }
      const float scale[2] = {capped ? 1.0F : rows.scale[0], capped ? 1.0F : rows.scale[1]};
      float factors[2];
      weigh_rows(scale, rows, scores[m], factors);
      scale_rows(factors, outputs[m]);
      pack_weights(scores[m], weights[m]);
    }
  }

  /// Steps `begin` to `end`, last to first: the tokens that few rows see come first. The keys of the last step are on
  /// their way.
  __device__ __forceinline__ void run(int32_t begin, int32_t end) {
#pragma unroll
    for (int32_t m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
      for (float& each : outputs[m]) each = 0.0F;
    }
    Scores scores;
    Weights weights;
    if constexpr (S::kStages == 1) {
#pragma unroll 1
      for (int32_t step = end - 1; step >= begin; --step) {
        wait_groups<0>();
        __syncthreads();  // keys are there, and no warp needs earlier values
        start_values(step, 0);
        commit_chunks();
        multiply_keys(0, scores);
        wait_groups<0>();
        __syncthreads();  // values are there, and no warp needs the keys
        if (step > begin) start_keys(step - 1, 0);
        commit_chunks();
        weigh(step, scores, weights);
        multiply_values(0, weights);
      }
    } else {
      if (end > begin) start_values(end - 1, 0);
      commit_chunks();
      int32_t stage = 0;
#pragma unroll 1
      for (int32_t step = end - 1; step >= begin; --step) {
        wait_groups<0>();
        __syncthreads();  // the step is there, and no warp needs the one before
        if (step > begin) {
          start_keys(step - 1, stage ^ 1);
          start_values(step - 1, stage ^ 1);
        }
        commit_chunks();
        multiply_keys(stage, scores);
        weigh(step, scores, weights);
        multiply_values(stage, weights);
        stage ^= 1;
      }
    }
  }
};

/// kRotated: keys are, and queries must be. A separate kernel, because its instructions would slow down blocks that do
/// not need them.
template <typename S, bool kRotated>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks)
    prefill_kernel(const __grid_constant__ AttendArguments arguments, const __grid_constant__ Tiles tiles) {
  extern __shared__ __align__(128) uint8_t shared[];
  auto& memory = *reinterpret_cast<BlockMemory<S>*>(shared);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const Work work = work_of<S::kRows>(arguments, tiles, static_cast<int32_t>(blockIdx.x));
  if (work.tiles < 0) return;
  for (int32_t row = thread; row < S::kRows; row += S::kThreads) {
    memory.row_position[row] = row_position(arguments, work, row);
  }
  __syncthreads();
  const QueryRange all = positions_of(memory.row_position, 0, work.rows);
  const int32_t masked = first_masked(arguments, work.unit);
  const TileRun run = visible_tiles(tiles.tokens + work.first_tile, work.tiles, all.first, all.last, arguments.window,
                                    masked_tile(masked), work.part, tiles.parts);
  constexpr int32_t kWarpRows = 16 * S::kRowTiles;
  Rows<S> rows{arguments, tiles, memory, work.first_tile, thread / 32 * kWarpRows, work, masked, {}, {}, {}};
  const int32_t begin = kSteps * run.begin;
  int32_t end = kSteps * run.end;
  // The last tile's second half may be behind all rows.
  while (arguments.mask.bits == nullptr && end > begin &&
         __ldg(rows.tokens_of(end - 1).positions + (end - 1) % kSteps * kStepTokens) > all.last)
    --end;
  if (end > begin) rows.start_keys(end - 1, 0);
  commit_chunks();
  float* scratch = reinterpret_cast<float*>(memory.values[S::kStages - 1]) + thread / 32 * kRotatedRows * S::kKeyWidth;
#pragma unroll
  for (int32_t m = 0; m < S::kRowTiles; ++m) {
    load_query_rows<S::kKeyWidth, S::kRows, kRotated>(arguments, work.unit, work.rows, rows.first_row + 16 * m,
                                                      {memory.queries, memory.row_scale, memory.row_position, scratch});
  }
  __syncwarp();
  const int32_t mine = rows.first_row + thread % 32 / 4;
#pragma unroll
  for (int32_t i = 0; i < 2 * S::kRowTiles; ++i) {
    rows.pairs[i / 2].scale[i % 2] = memory.row_scale[mine + 8 * i];
    rows.pairs[i / 2].position[i % 2] = memory.row_position[mine + 8 * i];
  }
  rows.range = positions_of(memory.row_position, rows.first_row, rows.first_row + kWarpRows);
  rows.run(begin, end);
  float* partial = nullptr;
  if (tiles.merges()) partial = tiles.partials + blockIdx.x * partial_floats(S::kRows, S::kValueWidth);
#pragma unroll
  for (int32_t m = 0; m < S::kRowTiles; ++m) {
    write_rows<S::kValueWidth, S::kRows>(arguments, work.unit, work.rows, mine + 16 * m, rows.pairs[m], rows.outputs[m],
                                         partial);
  }
}

template <typename S>
cudaError_t launch(const AttendArguments& arguments, const Tiles& tiles, cudaStream_t stream) {
  const auto kernel = tiles.rotated_keys != 0 ? prefill_kernel<S, true> : prefill_kernel<S, false>;
  return launch_blocks(kernel, S::kThreads, sizeof(BlockMemory<S>), S::kRows, arguments, tiles, stream);
}

template <typename S>
PrefillKernel kernel() {
  return {.key_width = S::kKeyWidth,
          .value_width = S::kValueWidth,
          .block_rows = S::kRows,
          .blocks = S::kBlocks,
          .least_rows = S::kKeyWidth <= 128 ? 384 : 320,
          .launch = launch<S>};
}

}  // namespace

PrefillKernel general_prefill(const HeadShape& head, int32_t shared_limit) {
  const int32_t head_dim = head.largest();
  if (head_dim > 128 && head.keys <= 192 && head.values <= 128) return kernel<Shape<192, 128, 8, 1, 1, 1>>();
  if (head_dim <= 64) return kernel<Shape<64, 64, 4, 2, 2, 3>>();
  if (head_dim <= 96) return kernel<Shape<96, 96, 4, 2, 1, 2>>();
  if (head_dim <= 128) return kernel<Shape<128, 128, 4, 2, 2, 2>>();
  if (head_dim <= 192) return kernel<Shape<192, 192, 8, 1, 1, 1>>();
  // 128 rows need more shared memory than some devices have.
  using Large = Shape<256, 256, 8, 1, 1, 1>;
  if (static_cast<size_t>(shared_limit) >= sizeof(BlockMemory<Large>)) return kernel<Large>();
  return kernel<Shape<256, 256, 4, 1, 1, 2>>();
}

}  // namespace kvq::cuda
