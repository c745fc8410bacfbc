#include "cache/forget.h"

#include "cache/reserve.h"
#include "core/window.h"

#include <algorithm>

namespace kvq {
namespace {

/// Pages of a list that may go, behind the sink, whose last position is at most `hidden`.
int32_t hidden_pages(const Sequence& sequence, const Sequence::PageList& list, int64_t hidden) {
  const int32_t sink = sequence.storage->sink;
  const auto end = static_cast<int32_t>(list.size()) - sequence.storage->recent;
  int32_t index = sink;
  while (index < end && list[static_cast<size_t>(index)]->last_position() <= hidden) ++index;
  return index - sink;
}

/// Returns whether any page was freed.
bool forget(Sequence& sequence, int32_t layer, int64_t hidden) noexcept {
  bool any = false;
  for (int32_t head = 0; head < sequence.cache.layer(layer).kv_heads; ++head) {
    Sequence::PageList& list = sequence.list(layer, head);
    const int32_t pages = hidden_pages(sequence, list, hidden);
    if (pages <= 0) continue;
    any = true;
    int32_t& forgotten = sequence.layers[static_cast<size_t>(layer)].forgotten;
    forgotten = std::max(forgotten, list[static_cast<size_t>(sequence.storage->sink + pages) - 1]->last_position());
    const auto first = list.begin() + sequence.storage->sink;
    const std::span<Page* const> gone(&*first, static_cast<size_t>(pages));
    if (Reserve* reserve = sequence.reserve(layer)) {
      reserve->drop(head, sequence.storage->sink, gone);
    } else {
      for (Page* page : gone) sequence.cache.release(page);
    }
    list.erase(first, first + pages);
    if (LayerMirror* mirror = sequence.mirror(layer)) mirror->invalidate(head, sequence.storage->sink);
  }
  return any;
}

}  // namespace

void forget_hidden(Sequence& sequence, int32_t layer, int32_t position) {
  const int32_t window = sequence.cache.layer(layer).window;
  if (window == 0 || sequence.step.tokens > 0 || sequence.waits(layer) || sequence.has_backlog(layer)) return;
  const int32_t oldest = std::max(position - sequence.storage->kept_for_truncation(), 0);
  if (forget(sequence, layer, newest_hidden(oldest, window)) && !sequence.reserves.empty()) publish(sequence, layer);
}

void forget_for_page(Sequence& sequence, int32_t layer, int32_t position, int32_t step) noexcept {
  const int32_t window = sequence.cache.layer(layer).window;
  const int32_t kept = sequence.storage->kept_for_truncation();
  if (window != 0) forget(sequence, layer, newest_hidden(std::max(position - kept - step + 1, 0), window));
}

int32_t most_pages(const LayerShape& layer, const Storage& storage, int32_t step) {
  if (layer.window == 0) return INT32_MAX;
  // Positions from the oldest seen when the append before began to the newest of this one, and a page that a device
  // frees later.
  const int64_t seen = layer.window > 0 ? layer.window : -int64_t{layer.window};
  const int64_t positions = seen + storage.kept_for_truncation() + 2 * int64_t{step} + kPageSlots;
  const int64_t of_window = (positions + 2 * kPageSlots - 2) / kPageSlots;
  const int64_t newest = storage.recent + 2 * int64_t{step} / kPageSlots + 2;
  return static_cast<int32_t>(std::min<int64_t>(storage.sink + std::max(of_window, newest), INT32_MAX));
}

int32_t slots_held(const LayerShape& layer, const Storage& storage, int32_t tokens) {
  if (layer.window == 0 || tokens == 0) return tokens;
  const int32_t pages = (tokens + kPageSlots - 1) / kPageSlots;
  // Whole pages whose last position the newest query does not see.
  const int32_t oldest = std::max(tokens - 1 - storage.kept_for_truncation(), 0);
  const int64_t hidden = (newest_hidden(oldest, layer.window) + 1) / kPageSlots - storage.sink;
  const int64_t most = int64_t{pages} - storage.sink - storage.recent;
  return tokens - static_cast<int32_t>(std::max<int64_t>(std::min(hidden, most), 0)) * kPageSlots;
}

}  // namespace kvq
