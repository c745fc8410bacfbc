#include "pool/tiling.h"

#include "attend/routes.h"

#include <algorithm>

namespace kvq::cuda {
namespace {

/// Each round of launches has few units where lists are long.
constexpr int32_t kPartialsPerMultiprocessor = 4;

int64_t ceiling(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Most sequences with so many new tokens as the division reads.
int32_t most_sequences(const PoolDivision& division, int32_t tokens, int32_t n_sequences) {
  return std::min(n_sequences, tokens / division.least_queries);
}

/// Rounds of launches that read so many lists of at most `tiles` each.
int32_t most_rounds(const TileRoom& room, int64_t lists, int32_t tiles) {
  return static_cast<int32_t>(ceiling(lists, room.tiles / tiles));
}

int32_t most_tiles(int32_t pages) { return std::max((pages + kTilePages - 1) / kTilePages, 1); }

/// Blocks that may share the tiles of a list.
int32_t most_parts(int32_t tiles) {
  constexpr int32_t kLeastTiles = 4;
  return std::max(tiles / kLeastTiles, 1);
}

}  // namespace

PoolTiling choose_tiling(const Device& device, const AttendBatch& queries, bool centred, const PoolMaxima& maxima,
                         int32_t block_pages) {
  PoolTiling tiling{prefill_of(device, queries.head), {}, 0, 0};
  const int32_t group = queries.q_heads / queries.kv_heads;
  const int64_t least_rows = least_prefill_rows(queries, tiling.kernel);
  if (centred || int64_t{maxima.queries} * group < least_rows) return tiling;
  PoolDivision& division = tiling.division;
  division = {.group = group,
              .rows = tiling.kernel.block_rows,
              .least_queries = static_cast<int32_t>(ceiling(least_rows, group)),
              .room = {.heads = queries.kv_heads, .tiles = 0}};
  const int32_t sequences = most_sequences(division, maxima.tokens, maxima.sequences);
  const int64_t lists = int64_t{sequences} * division.room.heads;
  const int32_t longest = most_tiles(maxima.blocks * block_pages);
  const int64_t all = lists * longest;
  const int64_t units = most_row_blocks({maxima.tokens, maxima.queries, 0}, sequences, division) * division.room.heads;
  if (std::max(all, units) > INT32_MAX / 2) return tiling;
  const auto fit = static_cast<int64_t>(kTileMemory / tiling.kernel.bytes_of_tiles(1));
  division.room.tiles = static_cast<int32_t>(std::min(std::max<int64_t>(fit, longest), all));
  tiling.partials = static_cast<int32_t>(
      std::min<int64_t>(units * most_parts(longest), int64_t{kPartialsPerMultiprocessor} * device.multiprocessors()));
  tiling.rounds = most_rounds(division.room, lists, longest);
  return tiling;
}

void attend_tiles(const Device& device, const Call& call, const TilingCall& of, const AttendArguments& arguments,
                  const PooledWork& work) {
  const PrefillKernel& kernel = of.tiling.kernel;
  const PoolDivision& division = of.tiling.division;
  const int32_t sequences = most_sequences(division, work.tokens, arguments.n_sequences);
  const int64_t lists = int64_t{sequences} * division.room.heads;
  const int32_t longest = most_tiles(work.pages);
  const int32_t rounds = std::min(most_rounds(division.room, lists, longest), of.starts.n_rounds);
  Tiles tiles{};
  tiles.key_width = kernel.key_width;
  tiles.value_width = kernel.value_width;
  tiles.heads = division.room.heads;
  tiles.row_blocks = static_cast<int32_t>(most_row_blocks(work, sequences, division));
  const int32_t units = tiles.row_blocks * tiles.heads;
  tiles.total = static_cast<int32_t>(std::min<int64_t>(lists * longest, division.room.tiles));
  const bool more_tokens =
      lists * longest * kTileTokens > int64_t{work.tokens} * arguments.q_heads && units <= of.tiling.partials;
  tiles.rotated_keys = arguments.hadamard_keys != 0 && more_tokens ? 1 : 0;
  tiles.rotated_values = arguments.hadamard_values != 0 && more_tokens ? 1 : 0;
  // Each round has its share of units.
  const int32_t blocks = std::min(kernel.blocks * device.multiprocessors() * rounds, of.tiling.partials);
  tiles.parts = std::min(most_parts(longest), std::max(blocks / units, 1));
  tiles.keys = of.memory;
  tiles.values = tiles.keys + static_cast<size_t>(division.room.tiles) * tile_bytes(tiles.key_width);
  tiles.tokens = reinterpret_cast<TileTokens*>(tiles.values + static_cast<size_t>(division.room.tiles) *
                                                                  tile_bytes(tiles.value_width));
  tiles.partials = reinterpret_cast<float*>(of.memory + of.tiling.bytes_of_tiles());
  for (int32_t round = 0; round < rounds; ++round) {
    tiles.round = of.starts.rounds + round;
    call.require(launch_unpack(arguments, tiles, device.multiprocessors(), device.shared_limit(), call.stream()),
                 "unpacking kernel");
    call.require(kernel.launch(arguments, tiles, call.stream()), "attention kernel");
  }
}

}  // namespace kvq::cuda
