#include "cache/page_copies.h"
#include "cache/reserve.h"
#include "core/error.h"

#include <algorithm>

namespace kvq {
namespace {

/// Where a cut falls in one head's list.
struct Cut {
  size_t whole_pages;  // kept as they are
  int32_t slots;       // kept of the page after them
};

Cut find_cut(const Sequence::PageList& list, int32_t length) {
  Cut cut{0, length};
  while (cut.whole_pages < list.size() && list[cut.whole_pages]->count <= cut.slots) {
    cut.slots -= list[cut.whole_pages]->count;
    ++cut.whole_pages;
  }
  return cut;
}

void check_cut(const Sequence& sequence, int32_t layer, int32_t length) {
  if (length > sequence.length(layer)) {
    fail(KVQ_E_ARGUMENT, "length is %d, but layer %d holds %d tokens", length, layer, sequence.length(layer));
  }
  for (int32_t head = 0; head < sequence.cache.kv_heads; ++head) {
    const Sequence::PageList& list = sequence.list(layer, head);
    const Cut cut = find_cut(list, length);
    if (cut.slots == 0 || list[cut.whole_pages]->is_float16()) continue;
    const int32_t before = length - cut.slots;
    fail(KVQ_E_STATE, "length is %d, inside a sealed page of layer %d: the nearest lengths that work are %d and %d",
         length, layer, before, before + list[cut.whole_pages]->count);
  }
}

bool needs_copy(const Sequence::PageList& list, const Cut& cut) {
  return cut.slots > 0 && list[cut.whole_pages]->is_shared();
}

void apply_cut(Sequence& sequence, int32_t layer, int32_t head, int32_t length, PageCopies& copies) noexcept {
  Cache& cache = sequence.cache;
  Sequence::PageList& list = sequence.list(layer, head);
  Reserve* reserve = sequence.reserve(layer);
  const Cut cut = find_cut(list, length);
  if (needs_copy(list, cut)) {
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
  Cache& cache = sequence.cache;
  for (int32_t layer = 0; layer < cache.n_layers; ++layer) check_cut(sequence, layer, length);
  PageCopies copies(cache);
  for (const Sequence::PageList& list : sequence.lists) {
    const Cut cut = find_cut(list, length);
    if (needs_copy(list, cut)) copies.add(*list[cut.whole_pages], cut.slots);
  }
  copies.run();
  for (int32_t layer = 0; layer < cache.n_layers; ++layer) {
    int32_t last = -1;
    for (int32_t head = 0; head < cache.kv_heads; ++head) {
      const Sequence::PageList& list = sequence.list(layer, head);
      apply_cut(sequence, layer, head, length, copies);
      if (LayerMirror* mirror = sequence.mirror(layer)) {
        mirror->invalidate(head, std::max(static_cast<int32_t>(list.size()) - 1, 0));
      }
      if (!list.empty()) last = std::max(last, list.back()->last_position());
    }
    sequence.layers[static_cast<size_t>(layer)] = {length, last};
  }
  if (!sequence.reserves.empty()) publish(sequence);
}

}  // namespace kvq
