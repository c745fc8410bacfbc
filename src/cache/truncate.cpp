#include "cache/forget.h"
#include "cache/observations.h"
#include "cache/page_copies.h"
#include "cache/reserve.h"
#include "cache/step.h"
#include "core/error.h"
#include "core/window.h"

#include <algorithm>

namespace kvq {
namespace {

/// Place of a cut in one head's list.
struct Cut {
  size_t whole_pages;  // kept as they are
  int32_t slots;       // kept slots of the page after them
};

/// Number of a head's slots among the first `length` tokens of the layer.
int32_t kept_slots(const Sequence& sequence, int32_t layer, int32_t head, int32_t length) {
  if (length == 0) return 0;
  if (length == sequence.length(layer)) return sequence.slots(layer, head);
  if (!sequence.evicted(layer, head)) return length;
  // Without eviction, only pages behind the sink are gone, and check_cut() ensured that the cut is behind them.
  if (sequence.cache.eviction.budget == 0) return length - (sequence.length(layer) - sequence.slots(layer, head));
  // check_cut() ensured that positions count tokens.
  int32_t slots = 0;
  for (const Page* page : sequence.list(layer, head)) {
    if (page->first_position >= length) break;
    for (int32_t slot = 0; slot < page->count && page->position(slot) < length; ++slot) ++slots;
  }
  return slots;
}

Cut find_cut(const Sequence::PageList& list, int32_t slots) {
  Cut cut{0, slots};
  while (cut.whole_pages < list.size() && list[cut.whole_pages]->count <= cut.slots) {
    cut.slots -= list[cut.whole_pages]->count;
    ++cut.whole_pages;
  }
  return cut;
}

/// Whether a layer that frees pages still has all that the queries after its first `length` tokens see.
void check_window(const Sequence& sequence, int32_t layer, int32_t length) {
  const int32_t window = sequence.cache.layer(layer).window;
  const int32_t forgotten = sequence.layers[static_cast<size_t>(layer)].forgotten;
  if (forgotten < 0 || length == 0) return;
  const bool counts = sequence.last_position(layer) == sequence.length(layer) - 1;
  // Where positions have gaps, those of the tokens before the cut are known only from the list.
  const int32_t dropped = sequence.length(layer) - length;
  const bool is_held = dropped < sequence.slots(layer, 0) - sequence.storage->sink * kPageSlots;
  const int32_t next = counts ? length : is_held ? sequence.position_from_end(layer, dropped + 1) + 1 : 0;
  if (forgotten <= newest_hidden(next, window)) return;
  fail(KVQ_E_STATE,
       "length is %d, but layer %d has freed tokens up to position %d, which queries after that would see through its "
       "%s of %d",
       length, sequence.cache.number(layer), forgotten, window > 0 ? "window" : "chunk", std::abs(window));
}

void check_cut(const Sequence& sequence, int32_t layer, int32_t length) {
  const int32_t number = sequence.cache.number(layer);
  if (length > sequence.length(layer)) {
    fail(KVQ_E_ARGUMENT, "length is %d, but layer %d holds %d tokens", length, number, sequence.length(layer));
  }
  if (length == sequence.length(layer)) return;
  check_window(sequence, layer, length);
  const bool evicts = sequence.cache.eviction.budget > 0;
  for (int32_t head = 0; head < sequence.cache.layer(layer).kv_heads; ++head) {
    const Sequence::PageList& list = sequence.list(layer, head);
    const bool evicted = sequence.evicted(layer, head);
    if (evicted && evicts && sequence.last_position(layer) != sequence.length(layer) - 1) {
      fail(KVQ_E_STATE, "length is %d, but tokens of layer %d have been evicted and their positions have gaps", length,
           number);
    }
    const Cut cut = find_cut(list, kept_slots(sequence, layer, head, length));
    if (cut.slots == 0 || list[cut.whole_pages]->is_float16()) continue;
    const Page& page = *list[cut.whole_pages];
    const int32_t before = evicted && evicts ? page.first_position : length - cut.slots;
    const int32_t after = evicted && evicts ? page.last_position() + 1 : before + page.count;
    fail(KVQ_E_STATE, "length is %d, inside a sealed page of layer %d: the nearest lengths that work are %d and %d",
         length, number, before, after);
  }
}

void apply_cut(Sequence& sequence, int32_t layer, int32_t head, int32_t length, PageCopies& copies) noexcept {
  Cache& cache = sequence.cache;
  Sequence::PageList& list = sequence.list(layer, head);
  Reserve* reserve = sequence.reserve(layer);
  const Cut cut = find_cut(list, kept_slots(sequence, layer, head, length));
  if (cut.slots > 0 && copies.is_next(*list[cut.whole_pages])) {
    cache.release(list[cut.whole_pages]);
    list[cut.whole_pages] = copies.take();
  }
  if (cut.slots > 0) cache.set_count(list[cut.whole_pages], cut.slots);
  const size_t kept = cut.whole_pages + (cut.slots > 0 ? 1 : 0);
  for (size_t i = kept; i < list.size(); ++i) {
    if (reserve == nullptr || !reserve->keep(head, static_cast<int32_t>(i), list[i])) cache.release(list[i]);
  }
  list.resize(kept);
}

}  // namespace

void truncate(Sequence& sequence, int32_t length) {
  require_no_step(sequence);
  Cache& cache = sequence.cache;
  for (int32_t layer = 0; layer < cache.n_layers; ++layer) check_cut(sequence, layer, length);
  const auto is_longer = [length](const Sequence::Layer& layer) { return layer.length > length; };
  if (std::ranges::any_of(sequence.layers, is_longer)) sequence.states.check_cut(length);
  PageCopies copies(cache);
  for (size_t i = 0; i < sequence.lists.size(); ++i) {
    const Sequence::PageList& list = sequence.lists[i];
    const Cut cut = find_cut(list, kept_slots(sequence, sequence.layer_of(i), sequence.head_of(i), length));
    // Checked only here: other holders may release the page any time.
    const bool needs_copy = cut.slots > 0 && list[cut.whole_pages]->is_shared();
    if (needs_copy) copies.add(*list[cut.whole_pages], cut.slots);
  }
  copies.run();
  for (int32_t layer = 0; layer < cache.n_layers; ++layer) {
    const bool by_position = sequence.last_position(layer) == sequence.length(layer) - 1;
    int32_t last = by_position ? length - 1 : -1;
    for (int32_t head = 0; head < cache.layer(layer).kv_heads; ++head) {
      const Sequence::PageList& list = sequence.list(layer, head);
      apply_cut(sequence, layer, head, length, copies);
      if (LayerMirror* mirror = sequence.mirror(layer)) {
        mirror->invalidate(head, std::max(static_cast<int32_t>(list.size()) - 1, 0));
      }
      if (!list.empty()) last = std::max(last, list.back()->last_position());
    }
    Sequence::Layer& state = sequence.layers[static_cast<size_t>(layer)];
    state = {length, last, -1, length > 0 ? state.forgotten : -1};
  }
  if (sequence.observations != nullptr) sequence.observations->truncate(sequence);
  if (sequence.calibration != nullptr) sequence.calibration->truncate(length, sequence.reserves.empty());
  for (const Owned<Reserve>& reserve : sequence.reserves) reserve->forget();
  sequence.states.truncate(length);
  if (!sequence.reserves.empty()) publish(sequence);
}

}  // namespace kvq
