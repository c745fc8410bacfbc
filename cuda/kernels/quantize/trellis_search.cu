#include "kernels/quantize/tile_cursor.cuh"
#include "kernels/quantize/trellis_search.cuh"

#include <algorithm>
#include <array>
#include <utility>

namespace kvq::cuda {
namespace {

using weights::Code;
using weights::Family;

/// The weight of the tile that a thread loads and stores, by its place in [dims][steps].
template <typename Trellis>
struct OwnWeight {
  int32_t step;
  int32_t dim;

  __device__ OwnWeight()
      : step(static_cast<int32_t>(threadIdx.x) % Trellis::kSteps),
        dim(static_cast<int32_t>(threadIdx.x) / Trellis::kSteps) {}
  __device__ int64_t at(const TilesToCode& tiles, const TileCursor& tile) const {
    constexpr Code kCode = Trellis::kOf;
    const weights::Place place = weights::place_of(kCode, step, dim);
    return tile.first_number + int64_t{place.row} * tiles.in + place.column;
  }
};

template <typename Trellis>
__device__ void load_targets(const TilesToCode& tiles, const TileCursor& tile, float* targets) {
  if (threadIdx.x >= weights::kTileWeights) return;
  const int64_t at = OwnWeight<Trellis>().at(tiles, tile);
  targets[threadIdx.x] = tiles.feed_back ? tiles.numbers[at] + tiles.error_sums[at] : tiles.numbers[at];
}

template <typename Trellis>
__device__ void store_misses(const TilesToCode& tiles, const TileCursor& tile, const uint16_t* path) {
  if (threadIdx.x >= weights::kTileWeights) return;
  const OwnWeight<Trellis> own;
  const int64_t at = own.at(tiles, tile);
  const float decoded = tiles.codebook.unit * static_cast<float>(level_of(tiles.codebook, path[own.step], own.dim));
  const float number = tiles.numbers[at];
  tiles.errors[at] = number - decoded;
  tiles.error_sums[at] += number - decoded;
  tiles.number_sums[at] += number;
}

/// Each state holds 16 bits of the stream, so some state holds any given byte entirely.
template <typename Trellis>
__device__ void store_codes(const TileCursor& tile, const uint16_t* path) {
  const auto byte = static_cast<int32_t>(threadIdx.x);
  if (byte >= static_cast<int32_t>(Trellis::kOf.tile_bytes())) return;
  int32_t step = 8 * byte / Trellis::kShift;
  while (step + 1 < Trellis::kSteps && Trellis::first_bit(step + 1) <= 8 * byte) ++step;
  tile.codes[byte] = static_cast<uint8_t>(path[step] >> (8 * byte - Trellis::first_bit(step)));
}

template <typename Trellis>
constexpr size_t kCostBytes = std::max(static_cast<size_t>(Trellis::groups(0) + Trellis::groups(1)) * sizeof(float),
                                       sizeof(PathTree));

/// One tile after the other per block.
template <typename Trellis>
__global__ void __launch_bounds__(kSearchThreads, 1) search_kernel(TilesToCode tiles, float* kept) {
  extern __shared__ __align__(16) float costs[];
  __shared__ SearchState shared;
  if (threadIdx.x == 0) shared.zero = 0;
  const OwnStates<Trellis> states(tiles.codebook);
  TrellisSearch<Trellis> search(tiles.codebook, states, shared, costs,
                                kept + static_cast<int64_t>(blockIdx.x) * Trellis::kKeptSteps * Trellis::groups(1));
  for (auto i = static_cast<int32_t>(blockIdx.x); i < tiles.panels * tiles.tiles;
       i += static_cast<int32_t>(gridDim.x)) {
    const TileCursor tile = tile_at(tiles, i);
    load_targets<Trellis>(tiles, tile, shared.targets);
    __syncthreads();
    search.run();
    store_codes<Trellis>(tile, shared.path);
    if (tiles.factors != nullptr) store_misses<Trellis>(tiles, tile, shared.path);
    __syncthreads();
  }
}

/// An instance for one code and the memory that it needs.
struct Search {
  Code code;
  int32_t run;
  size_t kept_bytes;
  size_t shared_bytes;
  cudaError_t (*launch)(const TilesToCode& tiles, int32_t blocks, float* kept, cudaStream_t stream);
};

template <typename Trellis>
cudaError_t launch(const TilesToCode& tiles, int32_t blocks, float* kept, cudaStream_t stream) {
  constexpr size_t kBytes = kCostBytes<Trellis>;
  const cudaError_t status = cudaFuncSetAttribute(search_kernel<Trellis>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                  static_cast<int>(kBytes));
  if (status != cudaSuccess) return status;
  search_kernel<Trellis><<<static_cast<uint32_t>(blocks), kSearchThreads, kBytes, stream>>>(tiles, kept);
  return cudaGetLastError();
}

template <Family kFamily, int32_t kQuarters, int32_t kRun>
constexpr Search search() {
  using Of = Trellis<Code{kFamily, kQuarters}, kRun>;
  return {Of::kOf, kRun, size_t{Of::kKeptSteps} * Of::groups(1) * sizeof(float), kCostBytes<Of>, launch<Of>};
}

// Runs are as long as a thread's states and the codes' addends allow.
constexpr std::array kSearches = {
    search<Family::kTcq, 6, 4>(),  search<Family::kTcq, 8, 2>(),  search<Family::kTcq, 10, 1>(),
    search<Family::kTcq, 12, 1>(), search<Family::kTcq, 14, 1>(), search<Family::kTcq, 16, 1>(),
    search<Family::kTcq, 18, 1>(), search<Family::kTcq, 20, 1>(), search<Family::kTcx, 6, 1>(),
    search<Family::kTcx, 8, 4>(),  search<Family::kTcx, 10, 1>(), search<Family::kTcx, 12, 1>(),
    search<Family::kTcx, 14, 1>(), search<Family::kTcx, 16, 2>(), search<Family::kTcx, 18, 1>(),
    search<Family::kTcx, 20, 1>(),
};

const Search* search_of(const Code& code) {
  const auto* found =
      std::find_if(kSearches.begin(), kSearches.end(), [&](const Search& each) { return each.code == code; });
  return found == kSearches.end() ? nullptr : found;
}

}  // namespace

bool searches_trellis(const Code& code, int32_t shared_limit) {
  const Search* search = search_of(code);
  return search != nullptr && search->shared_bytes + sizeof(SearchState) <= static_cast<size_t>(shared_limit);
}

size_t trellis_block_bytes(const Code& code) { return search_of(code)->kept_bytes; }

cudaError_t launch_search_trellis(const TilesToCode& tiles, int32_t blocks, float* kept, cudaStream_t stream) {
  const Search& search = *search_of(tiles.codebook.code);
  // Otherwise runs and their mirror images would overlap.
  if ((tiles.codebook.addend - 1U) % (2U * static_cast<uint32_t>(search.run)) != 0) return cudaErrorInvalidValue;
  return search.launch(tiles, std::min(blocks, tiles.panels * tiles.tiles), kept, stream);
}

}  // namespace kvq::cuda
