#include "cache/sequence.h"

#include "cache/dense_pages.h"
#include "cache/evicted_layer.h"
#include "cache/observations.h"
#include "cache/reserve.h"
#include "cache/step.h"
#include "core/error.h"

#include <algorithm>
#include <numeric>

namespace kvq {
namespace {

/// Choose the remaining slots of a layer's heads, `total` together.
void select_layer(Sequence& sequence, const Eviction& eviction, int32_t layer, int32_t total,
                  std::span<Vector<int32_t>> slots) {
  Cache& cache = sequence.cache;
  const SlotMasses masses = sequence.observations->masses(sequence, layer);
  if (eviction.heads == HeadSplit::kTogether) {
    const auto differs = [first = masses.counts.front()](int32_t count) { return count != first; };
    const auto other = std::find_if(masses.counts.begin(), masses.counts.end(), differs);
    if (other != masses.counts.end()) {
      fail(KVQ_E_STATE,
           "the policy evicts the same tokens from all heads, but in layer %d head 0 holds %d tokens and head %d holds "
           "%d",
           layer, masses.counts.front(), static_cast<int32_t>(other - masses.counts.begin()), *other);
    }
  }
  const Vector<const float*> numbers = masses.heads();
  cache.backend.weighing().require().select(
      cache.allocator, {.eviction = eviction, .masses = numbers, .counts = masses.counts, .total = total}, slots);
}

Vector<int32_t> layer_budgets(const Sequence& sequence, const Eviction& eviction) {
  Cache& cache = sequence.cache;
  Vector<LayerTokens> held(cache.allocator);
  for (int32_t layer = 0; layer < cache.n_layers; ++layer) {
    LayerTokens tokens{0, 0};
    for (int32_t head = 0; head < cache.kv_heads; ++head) {
      const int32_t slots = sequence.slots(layer, head);
      if (slots > INT32_MAX - tokens.tokens) {
        fail(KVQ_E_ARGUMENT, "layer %d holds more than %d tokens, all heads together", layer, INT32_MAX);
      }
      tokens.tokens += slots;
      tokens.window += std::min(slots, eviction.window);
    }
    held.push_back(tokens);
  }
  Vector<int32_t> budgets(held.size(), 0, cache.allocator);
  split_layers(cache.allocator, eviction, cache.kv_heads, held, budgets);
  return budgets;
}

void check(const Sequence& sequence, const Eviction& eviction, int32_t budget) {
  if (eviction.budget == 0) fail(KVQ_E_STATE, "the cache's policy has no eviction");
  if (budget != 0 && budget < eviction.window) {
    fail(KVQ_E_ARGUMENT, "options->budget is %d, smaller than the window of %d tokens that are always kept", budget,
         eviction.window);
  }
  if (sequence.cache.backend.recording())
    fail(KVQ_E_STATE, "the sequence cannot be compressed while a CUDA graph is captured");
  require_no_step(sequence);
  if (!sequence.reserves.empty() && !sequence.reserved_by_step)
    fail(KVQ_E_STATE, "the sequence has preallocated pages: free them with kvq_sequence_reserve and 0 tokens first");
  for (int32_t layer = 0; layer < sequence.cache.n_layers; ++layer) {
    if (sequence.length(layer) == 0) fail(KVQ_E_STATE, "layer %d of the sequence is empty", layer);
  }
}

}  // namespace

void compress(Sequence& sequence, int32_t budget, std::span<int32_t> kept) {
  Cache& cache = sequence.cache;
  check(sequence, cache.eviction, budget);
  Eviction eviction = cache.eviction;
  const int32_t longest = std::ranges::max(sequence.layers, {}, &Sequence::Layer::length).length;
  eviction.budget = budget != 0 ? budget : eviction.budget_of(longest);
  const Vector<int32_t> budgets = layer_budgets(sequence, eviction);
  const auto heads = static_cast<size_t>(cache.kv_heads);
  const Vector<int32_t> none(cache.allocator);
  Vector<Vector<int32_t>> slots(sequence.lists.size(), none, cache.allocator);
  // Pages whose formats a router chooses are made anew, all at once; others are written over.
  const bool routed = sequence.storage->layer_at(0).is_routed();
  DensePages pages(sequence);
  Vector<Owned<EvictedLayer>> layers(cache.allocator);
  for (int32_t layer = 0; layer < cache.n_layers; ++layer) {
    const auto of_layer = std::span(slots).subspan(static_cast<size_t>(layer) * heads, heads);
    int64_t held = 0;
    for (int32_t head = 0; head < cache.kv_heads; ++head) held += sequence.slots(layer, head);
    if (budgets[static_cast<size_t>(layer)] >= held) continue;
    select_layer(sequence, eviction, layer, budgets[static_cast<size_t>(layer)], of_layer);
    if (routed) {
      pages.add_layer(layer, of_layer);
    } else {
      layers.push_back(make_owned<EvictedLayer>(cache.allocator, sequence, layer, of_layer));
    }
  }
  Vector<SlotMasses> masses = sequence.observations->kept(slots);
  BackendMemory staging(cache.backend, cache.allocator);
  Allocator scratch(cache.allocator, 0, "cache");
  if (!layers.empty()) {
    staging.make(EvictedLayer::staging_bytes(cache, *sequence.storage));
    scratch.keep_block(EvictedLayer::scratch_bytes(cache, *sequence.storage));
  }
  pages.commit();
  for (const Owned<EvictedLayer>& layer : layers) layer->commit(staging, scratch);
  sequence.observations->keep(masses);
  for (const Owned<EvictedLayer>& layer : layers) layer->trim();
  if (sequence.reserved_by_step) reserve(sequence, 0);
  for (size_t list = 0; list < kept.size(); ++list) {
    kept[list] = sequence.slots(sequence.layer_of(list), sequence.head_of(list));
  }
}

}  // namespace kvq
