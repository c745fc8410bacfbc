// Attention of many query rows by way of FP16 tiles.
#include "attend/routes.h"
#include "attend/workspace.h"

#include <algorithm>

namespace kvq::cuda {
namespace {

/// Blocks that share each unit's tiles, where units are too few for the `blocks` that run at once.
int32_t parts_of(const Tiles& tiles, int32_t longest, int32_t blocks) {
  constexpr int32_t kLeastTiles = 4;
  const int32_t units = std::max(tiles.row_blocks * tiles.heads, 1);
  return std::clamp(longest / kLeastTiles, 1, std::max(blocks / units, 1));
}

}  // namespace

PrefillKernel prefill_of(const Device& device, const HeadShape& head) {
  if (head.is_latent || head.largest() > kMaxHeadDim) return {};
  return choose_prefill(head, device.compute_capability(), device.shared_limit());
}

int64_t least_prefill_rows(const AttendBatch& batch, const PrefillKernel& kernel) {
  constexpr int64_t kLeastWideRows = 128;  // the wide route decodes pages for each 64 rows anew
  if (kernel.launch == nullptr) return INT32_MAX;
  return needs_wide(batch.head, *batch.rope) ? kLeastWideRows : kernel.least_rows;
}

int32_t heads_together(size_t bytes_of_head, int32_t kv_heads) {
  const size_t fit = kTileMemory / std::max(bytes_of_head, size_t{1});
  return static_cast<int32_t>(std::clamp<size_t>(fit, 1, static_cast<size_t>(kv_heads)));
}
int32_t longest_list(const AttendSequence& sequence, int32_t kv_heads) {
  return *std::max_element(sequence.page_counts, sequence.page_counts + kv_heads);
}
int32_t tiles_of(const AttendSequence& sequence, int32_t kv_heads) {
  return (longest_list(sequence, kv_heads) + kTilePages - 1) / kTilePages;
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
  tiles.key_width = prefill_.key_width;
  tiles.value_width = prefill_.value_width;
  int32_t of_a_head = 0;
  int32_t longest = 0;
  int64_t queries = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const AttendSequence& sequence = *sequences[i]->sequence;
    tiles.counts[i] = tiles_of(sequence, batch_.kv_heads);
    of_a_head += tiles.counts[i];
    longest = std::max(longest, tiles.counts[i]);
    queries += sequence.query_count;
    tiles.row_blocks +=
        (sequence.query_count * static_cast<int32_t>(group) + prefill_.block_rows - 1) / prefill_.block_rows;
  }
  // Tiles of tokens are rotated back, or queries and outputs are rotated, whichever are fewer.
  const bool more_tokens = int64_t{of_a_head} * kTileTokens * batch_.kv_heads > queries * batch_.q_heads;
  tiles.rotated_keys = batch_.any_hadamard_keys && more_tokens ? 1 : 0;
  tiles.rotated_values = batch_.any_hadamard_values && more_tokens ? 1 : 0;
  const int32_t together = heads_together(prefill_.bytes_of_tiles(of_a_head), batch_.kv_heads);
  tiles.heads = together;
  tiles.parts = parts_of(tiles, longest, prefill_.blocks * device_.multiprocessors());
  const int32_t most = of_a_head * together;
  const size_t keys = static_cast<size_t>(most) * tile_bytes(tiles.key_width);
  const size_t values = static_cast<size_t>(most) * tile_bytes(tiles.value_width);
  const size_t units = static_cast<size_t>(tiles.row_blocks) * static_cast<size_t>(tiles.heads);
  const size_t partials = tiles.merges() ? units * static_cast<size_t>(tiles.parts) : 0;
  const size_t partial_bytes = partials * partial_floats(prefill_.block_rows, tiles.value_width) * sizeof(float);
  const size_t all_tiles = prefill_.bytes_of_tiles(most);
  const DeviceBlock memory(device_, space_.allocator(), std::max(all_tiles + partial_bytes, size_t{1}));
  tiles.keys = memory.memory();
  tiles.values = memory.memory() + keys;
  tiles.tokens = reinterpret_cast<TileTokens*>(memory.memory() + keys + values);
  tiles.partials = reinterpret_cast<float*>(memory.memory() + all_tiles);
  for (tiles.first_head = 0; tiles.first_head < batch_.kv_heads; tiles.first_head += together) {
    tiles.heads = std::min(together, batch_.kv_heads - tiles.first_head);
    tiles.total = 0;
    for (size_t i = 0; i < sequences.size(); ++i) {
      tiles.begins[i] = tiles.total;
      tiles.total += tiles.counts[i] * tiles.heads;
    }
    if (tiles.total > 0) {
      call_.require(launch_unpack(arguments_, tiles, device_.multiprocessors(), device_.shared_limit(), call_.stream()),
                    "unpacking kernel");
    }
    call_.require(prefill_.launch(arguments_, tiles, call_.stream()), "attention kernel");
  }
}

}  // namespace kvq::cuda
