// Attention of many query rows by way of FP16 tiles.
#include "attend/routes.h"
#include "attend/workspace.h"

#include <algorithm>

namespace kvq::cuda {
namespace {

/// Blocks that share each unit's tiles, where units are too few for the device.
int32_t parts_of(const Tiles& tiles, int32_t longest, int32_t multiprocessors) {
  constexpr int32_t kLeastTiles = 4;
  const int32_t units = std::max(tiles.row_blocks * tiles.heads, 1);
  return std::clamp(longest / kLeastTiles, 1, std::max(multiprocessors / units, 1));
}

}  // namespace

int32_t tiles_of(const AttendSequence& sequence, int32_t kv_heads) {
  const int32_t pages = *std::max_element(sequence.page_counts, sequence.page_counts + kv_heads);
  return (pages + kTilePages - 1) / kTilePages;
}

void AttendCall::attend_prefill(LaunchSequences sequences) {
  set_sequences(sequences);
  const auto launched = std::span(arguments_.sequences).first(sequences.size());
  if (std::any_of(launched.begin(), launched.end(), [](const auto& each) { return each.last_position < 0; })) {
    arguments_.query_positions = positions();  // otherwise every query would walk the tables
  }
  const auto group = static_cast<uint32_t>(batch_.q_heads / batch_.kv_heads);
  arguments_.group = divisor(group);
  arguments_.one_row_block = 0;
  arguments_.uniform_pages = -1;
  Tiles tiles{};
  int32_t of_a_head = 0;
  int32_t longest = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const AttendSequence& sequence = *sequences[i]->sequence;
    tiles.counts[i] = tiles_of(sequence, batch_.kv_heads);
    of_a_head += tiles.counts[i];
    longest = std::max(longest, tiles.counts[i]);
    tiles.row_blocks += (sequence.query_count * static_cast<int32_t>(group) + kBlockRows - 1) / kBlockRows;
  }
  const size_t bytes_of_head = std::max(bytes_of_tiles(of_a_head, batch_.head.keys), size_t{1});
  const auto heads_together =
      static_cast<int32_t>(std::clamp<size_t>(kTileMemory / bytes_of_head, 1, static_cast<size_t>(batch_.kv_heads)));
  tiles.heads = heads_together;
  tiles.parts = parts_of(tiles, longest, device_.multiprocessors());
  const int32_t most = of_a_head * heads_together;
  const size_t side = static_cast<size_t>(most) * tile_bytes(batch_.head.keys);
  const size_t units = static_cast<size_t>(tiles.row_blocks) * static_cast<size_t>(tiles.heads);
  const size_t partials = tiles.parts > 1 ? units * static_cast<size_t>(tiles.parts) : 0;
  const size_t partial_bytes = partials * prefill_partial_floats(batch_.head.keys) * sizeof(float);
  const size_t all_tiles = bytes_of_tiles(most, batch_.head.keys);
  const DeviceBlock memory(device_, space_.allocator(), std::max(all_tiles + partial_bytes, size_t{1}));
  tiles.keys = memory.memory();
  tiles.values = memory.memory() + side;
  tiles.tokens = reinterpret_cast<TileTokens*>(memory.memory() + 2 * side);
  tiles.partials = reinterpret_cast<float*>(memory.memory() + all_tiles);
  for (tiles.first_head = 0; tiles.first_head < batch_.kv_heads; tiles.first_head += heads_together) {
    tiles.heads = std::min(heads_together, batch_.kv_heads - tiles.first_head);
    tiles.total = 0;
    for (size_t i = 0; i < sequences.size(); ++i) {
      tiles.begins[i] = tiles.total;
      tiles.total += tiles.counts[i] * tiles.heads;
    }
    if (tiles.total > 0) {
      call_.require(launch_unpack(arguments_, tiles, device_.multiprocessors(), call_.stream()), "unpacking kernel");
    }
    call_.require(launch_prefill(arguments_, tiles, call_.stream()), "attention kernel");
  }
}

}  // namespace kvq::cuda
