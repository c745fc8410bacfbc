// Attention with heads of any shape.
#include "attend/routes.h"
#include "attend/workspace.h"
#include "kernels/wide/wide.h"

#include <algorithm>

namespace kvq::cuda {

int32_t parts_of(int32_t row_blocks, int32_t longest, int32_t blocks) {
  constexpr int32_t kLeastPages = 3;
  return std::clamp(longest / kLeastPages, 1, std::max(blocks / std::max(row_blocks, 1), 1));
}

WideKernel require_wide(const Device& device, const HeadShape& head, const WideWork& work) {
  const WideKernel kernel = choose_wide(head, work, device.compute_capability(), device.shared_limit());
  if (kernel.launch == nullptr) {
    fail(KVQ_E_UNSUPPORTED,
         "keys of %d channels and values of %d need more shared memory than the %d bytes of this GPU", head.whole_key(),
         head.values, device.shared_limit());
  }
  return kernel;
}

size_t wide_tile_bytes(const WideWidths& widths, const AttendSequence& sequence, int32_t kv_heads) {
  return size_t{2} * kSlots * static_cast<size_t>(widths.key_width + widths.value_width) *
         static_cast<size_t>(longest_list(sequence, kv_heads));
}

bool needs_wide(const HeadShape& head, const Rope& rope) {
  return !head.is_equal() || head.keys > kMaxHeadDim || rope.begin > 0;
}

void AttendCall::attend_wide(LaunchSequences sequences, bool tiles) {
  set_sequences(sequences);
  const auto launched = std::span(arguments_.sequences).first(sequences.size());
  if (!batch_.recorded &&
      std::any_of(launched.begin(), launched.end(), [](const auto& each) { return each.last_position < 0; })) {
    arguments_.query_positions = positions();  // otherwise every query would walk the tables
  }
  const int32_t group = batch_.q_heads / batch_.kv_heads;
  arguments_.group = divisor(static_cast<uint32_t>(group));
  arguments_.one_row_block = 0;
  arguments_.uniform_pages = -1;
  WideWork work{.most_rows = 0, .rows = 0, .longest = 0, .multiprocessors = device_.multiprocessors(), .tiles = tiles};
  WideLaunch launch{};
  for (size_t i = 0; i < sequences.size(); ++i) {
    const AttendSequence& sequence = *sequences[i]->sequence;
    const int32_t rows = sequence.query_count * group;
    const int32_t count = longest_list(sequence, batch_.kv_heads);
    work.most_rows = std::max(work.most_rows, rows);
    work.rows += rows * batch_.kv_heads;
    work.longest = std::max(work.longest, count);
    launch.of_tiles.counts[i] = count;
  }
  const WideKernel kernel = require_wide(device_, batch_.head, work);
  static_cast<WideWidths&>(launch) = kernel.widths;
  launch.ring_bytes = kernel.ring_bytes;
  size_t bytes_of_head = 0;  // of tiles of all sequences
  for (const RoutedSequence* each : sequences) {
    launch.row_blocks += (each->sequence->query_count * group + kernel.rows - 1) / kernel.rows;
    bytes_of_head += wide_tile_bytes(kernel.widths, *each->sequence, batch_.kv_heads);
  }
  const int32_t together = kernel.reads_tiles ? heads_together(bytes_of_head, batch_.kv_heads) : batch_.kv_heads;
  const int32_t blocks = launch.row_blocks * together;
  launch.parts = parts_of(blocks, work.longest, kernel.blocks * device_.multiprocessors());
  AttendLaunch memory{};
  if (launch.parts > 1) {
    memory.partial_floats =
        static_cast<size_t>(blocks) * static_cast<size_t>(launch.parts) * static_cast<size_t>(kernel.partial_floats);
  }
  space_.reserve(memory, batch_.recorded);
  launch.partials = space_.partials();
  DeviceBlock decoded;
  if (kernel.reads_tiles) {
    decoded =
        DeviceBlock(device_, space_.allocator(), std::max(bytes_of_head * static_cast<size_t>(together), size_t{1}));
    launch.tiles = decoded.memory();
  }
  for (; launch.first_head < batch_.kv_heads; launch.first_head += together) {
    launch.heads = std::min(together, batch_.kv_heads - launch.first_head);
    if (kernel.reads_tiles) {
      launch.of_tiles.total = 0;
      for (size_t i = 0; i < sequences.size(); ++i) {
        launch.of_tiles.begins[i] = launch.of_tiles.total;
        launch.of_tiles.total += launch.of_tiles.counts[i] * launch.heads;
      }
      call_.require(launch_wide_tiles(arguments_, launch, decoded.memory(), device_.multiprocessors(),
                                      device_.shared_limit(), call_.stream()),
                    "unpacking kernel");
    }
    call_.require(kernel.launch(arguments_, launch, kernel.shared_bytes, call_.stream()), "attention kernel");
  }
}

}  // namespace kvq::cuda
