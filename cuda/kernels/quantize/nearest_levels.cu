#include "kernels/quantize/tile_cursor.cuh"

#include <cfloat>

namespace kvq::cuda {
namespace {

using weights::kTileColumns;
using weights::kTileRows;

constexpr int32_t kThreads = 256;
constexpr int32_t kTilesAtOnce = kThreads / kTileRows;
constexpr int32_t kWordBits = 32;

/// Index of the nearest of ascending levels, with the host's rounding.
__device__ uint32_t nearest(const float* levels, int32_t n, const float (&target)[1]) {
  uint32_t best = 0;
  for (int32_t i = 1; i < n; ++i) best += target[0] > 0.5F * (levels[i - 1] + levels[i]) ? 1U : 0U;
  return best;
}
/// Index of the nearest pair of levels.
__device__ uint32_t nearest(const float* levels, int32_t n, const float (&target)[2]) {
  uint32_t best = 0;
  float least = FLT_MAX;
  for (int32_t i = 0; i < n; i += 2) {
    const float dx = target[0] - levels[i];
    const float dy = target[1] - levels[i + 1];
    const float distance = dx * dx + dy * dy;
    if (distance < least) best = static_cast<uint32_t>(i) / 2;
    least = fminf(least, distance);
  }
  return best;
}

/// A thread's row of a tile.
struct TileRow {
  float numbers[kTileColumns];
  float errors[kTileColumns];
  float error_sums[kTileColumns];
  float number_sums[kTileColumns];
};

__device__ void load(const TilesToCode& tiles, int64_t at, TileRow& row) {
#pragma unroll
  for (int32_t c = 0; c < kTileColumns; ++c) {
    row.numbers[c] = tiles.numbers[at + c];
    row.error_sums[c] = tiles.factors != nullptr ? tiles.error_sums[at + c] : 0.0F;
    row.number_sums[c] = tiles.factors != nullptr ? tiles.number_sums[at + c] : 0.0F;
  }
}
__device__ void store(const TilesToCode& tiles, int64_t at, const TileRow& row) {
#pragma unroll
  for (int32_t c = 0; c < kTileColumns; ++c) {
    tiles.errors[at + c] = row.errors[c];
    tiles.error_sums[at + c] = row.error_sums[c];
    tiles.number_sums[at + c] = row.number_sums[c];
  }
}

/// Adds the feedback of the columns from `behind` on to a column.
__device__ __forceinline__ void add_within(const float* factors, int32_t column, int32_t behind, TileRow& row) {
#pragma unroll
  for (int32_t j = 0; j < kTileColumns; ++j) {
    if (j < behind) continue;
    const float factor = factors[j * kTileColumns + column];
    row.error_sums[column] += row.errors[j] * factor;
    row.number_sums[column] += row.numbers[j] * factor;
  }
}

__device__ void write_bits(uint32_t* words, int32_t first, uint32_t value) {
  const auto shift = static_cast<uint32_t>(first % kWordBits);
  atomicOr(words + first / kWordBits, value << shift);
  if (shift > 0 && value >> (kWordBits - shift) != 0)
    atomicOr(words + first / kWordBits + 1, value >> (kWordBits - shift));
}

template <int32_t kDims>
__device__ void code_row(const TilesToCode& tiles, int32_t row_number, const float* levels, TileRow& row,
                         uint32_t* words) {
  const weights::Code code = tiles.codebook.code;
  const auto n_levels = static_cast<int32_t>(tiles.codebook.levels.size());
#pragma unroll
  for (int32_t begin = kTileColumns - kDims; begin >= 0; begin -= kDims) {
    float target[kDims];
#pragma unroll
    for (int32_t c = 0; c < kDims; ++c) {
      if (tiles.factors != nullptr) add_within(tiles.factors, begin + c, begin + kDims, row);
      target[c] = row.numbers[begin + c];
      if (tiles.feed_back) target[c] += row.error_sums[begin + c];
    }
    const uint32_t best = nearest(levels, n_levels, target);
#pragma unroll
    for (int32_t c = 0; c < kDims; ++c) {
      row.errors[begin + c] = row.numbers[begin + c] - levels[kDims * best + static_cast<uint32_t>(c)];
      row.error_sums[begin + c] += row.errors[begin + c];
      row.number_sums[begin + c] += row.numbers[begin + c];
    }
    const int32_t step = weights::step_of(code, {row_number, weights::coding_order(code, begin)});
    write_bits(words, step * code.window_bits(), best);
  }
}

/// One row of a tile per thread; a tile's codes are assembled in shared memory.
template <int32_t kDims>
__global__ void __launch_bounds__(kThreads) nearest_kernel(TilesToCode tiles) {
  extern __shared__ __align__(16) float levels[];
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const auto n_levels = static_cast<int32_t>(tiles.codebook.levels.size());
  const auto n_words = static_cast<int32_t>(tiles.codebook.code.tile_bytes() / sizeof(uint32_t));
  auto* words = reinterpret_cast<uint32_t*>(levels + n_levels);
  for (int32_t i = thread; i < n_levels; i += kThreads) {
    levels[i] = tiles.codebook.unit * static_cast<float>(tiles.codebook.levels[static_cast<size_t>(i)]);
  }
  for (int32_t i = thread; i < kTilesAtOnce * n_words; i += kThreads) words[i] = 0;
  __syncthreads();
  const int32_t first = static_cast<int32_t>(blockIdx.x) * kTilesAtOnce;
  const int32_t n = min(kTilesAtOnce, tiles.panels * tiles.tiles - first);
  if (thread / kTileRows < n) {
    const int32_t row_number = thread % kTileRows;
    const int64_t at = tile_at(tiles, first + thread / kTileRows).first_number + int64_t{row_number} * tiles.in;
    TileRow row;
    load(tiles, at, row);
    code_row<kDims>(tiles, row_number, levels, row, words + thread / kTileRows * n_words);
    if (tiles.factors != nullptr) store(tiles, at, row);
  }
  __syncthreads();
  for (int32_t i = thread; i < n * n_words; i += kThreads) {
    reinterpret_cast<uint32_t*>(tile_at(tiles, first + i / n_words).codes)[i % n_words] = words[i];
  }
}

}  // namespace

cudaError_t launch_nearest_levels(const TilesToCode& tiles, cudaStream_t stream) {
  const auto blocks = static_cast<uint32_t>((tiles.panels * tiles.tiles + kTilesAtOnce - 1) / kTilesAtOnce);
  const size_t bytes = tiles.codebook.levels.size() * sizeof(float) + kTilesAtOnce * tiles.codebook.code.tile_bytes();
  if (tiles.codebook.code.dims() == 2) {
    nearest_kernel<2><<<blocks, kThreads, bytes, stream>>>(tiles);
  } else {
    nearest_kernel<1><<<blocks, kThreads, bytes, stream>>>(tiles);
  }
  return cudaGetLastError();
}

}  // namespace kvq::cuda
