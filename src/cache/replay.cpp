// Replayed graphs append on the device: the state they start from, and how the host's lists catch up.
#include "cache/reserve.h"
#include "cache/sequence.h"

namespace kvq {

void follow_replays(const Sequence& sequence) {
  if (!sequence.recorded || sequence.cache.backend.recording()) return;
  // The device's lists are the sequence's state: nothing visible to a caller changes.
  auto& behind = const_cast<Sequence&>(sequence);
  const std::lock_guard lock(behind.replayed_mutex);
  Cache& cache = behind.cache;
  Vector<int32_t> lengths(behind.layers.size(), 0, cache.allocator);
  cache.backend.pages().read_lengths(behind.mirrors, lengths);
  for (int32_t layer = 0; layer < cache.n_layers; ++layer) {
    const int32_t replayed = lengths[static_cast<size_t>(layer)] - behind.length(layer);
    if (replayed <= 0) continue;
    repeat_append(behind, layer, replayed);
    behind.mirror(layer)->agreed(behind.counts(layer));
  }
}

void publish(Sequence& sequence) {
  for (int32_t layer = 0; layer < static_cast<int32_t>(sequence.mirrors.size()); ++layer) {
    const Reserve* reserve = sequence.reserve(layer);
    for (int32_t head = 0; head < sequence.cache.kv_heads; ++head) {
      sequence.published_lists[static_cast<size_t>(head)] = sequence.list(layer, head).data();
    }
    const ReservedPages pages = reserve != nullptr ? reserve->view() : ReservedPages{};
    sequence.mirror(layer)->publish(sequence.published_lists.data(), sequence.counts(layer),
                                    sequence.state(layer, 0, sequence.last_position(layer)),
                                    reserve != nullptr ? &pages : nullptr);
  }
}

}  // namespace kvq
