#include "cache/observations.h"
#include "cache/page_copies.h"
#include "cache/reserve.h"
#include "cache/step.h"
#include "core/error.h"

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
  if (length == sequence.length(layer)) return sequence.slots(layer, head);
  if (!sequence.evicted(layer, head)) return length;
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

void check_cut(const Sequence& sequence, int32_t layer, int32_t length) {
  const int32_t number = sequence.cache.number(layer);
  if (length > sequence.length(layer)) {
    fail(KVQ_E_ARGUMENT, "length is %d, but layer %d holds %d tokens", length, number, sequence.length(layer));
  }
  if (length == sequence.length(layer)) return;
  for (int32_t head = 0; head < sequence.cache.layer(layer).kv_heads; ++head) {
    const Sequence::PageList& list = sequence.list(layer, head);
    const bool evicted = sequence.evicted(layer, head);
    if (evicted && sequence.last_position(layer) != sequence.length(layer) - 1) {
      fail(KVQ_E_STATE, "length is %d, but tokens of layer %d have been evicted and their positions have gaps", length,
           number);
    }
    const Cut cut = find_cut(list, kept_slots(sequence, layer, head, length));
    if (cut.slots == 0 || list[cut.whole_pages]->is_float16()) continue;
    const Page& page = *list[cut.whole_pages];
    const int32_t before = evicted ? page.first_position : length - cut.slots;
    const int32_t after = evicted ? page.last_position() + 1 : before + page.count;
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
    sequence.layers[static_cast<size_t>(layer)] = {length, last};
  }
  if (sequence.observations != nullptr) sequence.observations->truncate(sequence);
  if (sequence.calibration != nullptr) sequence.calibration->truncate(length, sequence.reserves.empty());
  for (const Owned<Reserve>& reserve : sequence.reserves) reserve->forget();
  sequence.states.truncate(length);
  if (!sequence.reserves.empty()) publish(sequence);
}

}  // namespace kvq
