#include "cache/sequence.h"

#include "cache/dense_pages.h"
#include "cache/evicted_layer.h"
#include "cache/observations.h"
#include "cache/reserve.h"
#include "cache/step.h"
#include "core/error.h"

#include <algorithm>
#include <numeric>
#include <optional>

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
           cache.number(layer), masses.counts.front(), static_cast<int32_t>(other - masses.counts.begin()), *other);
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
    for (int32_t head = 0; head < cache.layer(layer).kv_heads; ++head) {
      const int32_t slots = sequence.slots(layer, head);
      if (slots > INT32_MAX - tokens.tokens) {
        fail(KVQ_E_ARGUMENT, "layer %d holds more than %d tokens, all heads together", cache.number(layer), INT32_MAX);
      }
      tokens.tokens += slots;
      tokens.window += std::min(slots, eviction.window);
    }
    held.push_back(tokens);
  }
  Vector<int32_t> budgets(held.size(), 0, cache.allocator);
  split_layers(cache.allocator, eviction, cache.layer(0).kv_heads, held, budgets);
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
    if (sequence.length(layer) == 0)
      fail(KVQ_E_STATE, "layer %d of the sequence is empty", sequence.cache.number(layer));
  }
}

/// Opens the room kept for a sequence, and keeps as much as it needs afterwards.
class RoomInUse {
 public:
  explicit RoomInUse(Sequence& sequence) : sequence_(sequence) { sequence.compress_room.release(); }
  RoomInUse(const RoomInUse&) = delete;
  RoomInUse& operator=(const RoomInUse&) = delete;
  ~RoomInUse() {
    try {
      keep_compress_room(sequence_, 0);
    } catch (...) {  // other threads have taken it: the next append asks again
    }
  }

 private:
  Sequence& sequence_;
};

}  // namespace

void CompressRoom::keep(int32_t tokens, uint64_t bytes) {
  if (bytes > bytes_) {
    limited_.keep_back(bytes - bytes_);
  } else {
    limited_.give_back(bytes_ - bytes);
  }
  bytes_ = bytes;
  tokens_ = tokens;
}

uint64_t compress_bytes(const Cache& cache, const Storage& storage, int32_t tokens) {
  const Eviction& eviction = cache.eviction;
  if (eviction.budget == 0 || storage.layer_at(0).is_routed() || tokens == 0) return 0;
  const auto layers = static_cast<uint64_t>(cache.n_layers);
  const auto heads = static_cast<uint64_t>(cache.layer(0).kv_heads);
  const auto held = static_cast<uint64_t>(tokens);
  const auto budget = static_cast<uint64_t>(
      eviction.percent > 0.0F ? tokens : std::min(std::max(eviction.budget, eviction.window), tokens));
  const auto kept = static_cast<int64_t>(layers * heads * budget);
  const size_t pages = static_cast<size_t>(tokens) / kPageSlots + 1;
  constexpr uint64_t kSelectingBytes = 24;  // of a slot, while those that remain are chosen
  constexpr uint64_t kListBytes = 256;      // of a list, beside its slots
  uint64_t bytes = static_cast<uint64_t>(kept) * sizeof(int32_t) + layers * heads * kListBytes +
                   layers * EvictedLayer::plan_bytes(cache, kept / cache.n_layers);
  bytes += SlotMasses::bytes_of(heads, tokens) + heads * held * kSelectingBytes;
  if (eviction.score == TokenScore::kMass) {
    const auto longest = static_cast<int32_t>(std::min(held, heads * budget));
    bytes += layers * (SlotMasses::bytes_of(heads, longest) + sizeof(SlotMasses));
  }
  if (eviction.score == TokenScore::kWindow) {
    bytes += static_cast<uint64_t>(eviction.window) * static_cast<uint64_t>(cache.layer(0).q_heads) *
             static_cast<uint64_t>(cache.layer(0).head.whole_key()) * sizeof(float);
    const Vector<AttendBatch> batches = cache.attend_batches(cache.allocator.parent());
    const ExpectedCall call{.layers = batches,
                            .sequences = 1,
                            .queries = eviction.window,
                            .pages = tokens / kPageSlots + 1,
                            .weighed = eviction.group};
    // Shorter lists are divided more finely, so that a shorter sequence may take more, but not twice as much.
    bytes += 2 * cache.backend.attention().workspace_bytes({&call, 1});
  }
  return bytes + EvictedLayer::staging_bytes(cache, storage, pages) +
         EvictedLayer::scratch_bytes(cache, storage, pages);
}

namespace {

/// Tokens for which room is kept: rounded up, so that asking for more is rare.
int32_t rounded_tokens(int64_t tokens) {
  constexpr int64_t kTokens = 512;
  return static_cast<int32_t>(std::min<int64_t>((tokens + kTokens - 1) / kTokens * kTokens, INT32_MAX));
}

}  // namespace

uint64_t kept_compress_room(const Cache& cache, int32_t tokens) {
  return compress_bytes(cache, *cache.storage, rounded_tokens(int64_t{tokens} + kPageSlots));
}

void keep_compress_room(Sequence& sequence, int32_t layer, int32_t tokens) {
  Cache& cache = sequence.cache;
  if (cache.eviction.budget == 0) return;
  size_t pages = 0;
  for (const Sequence::PageList& list : sequence.lists_of(layer)) pages = std::max(pages, list.size());
  const int64_t held = static_cast<int64_t>(pages) * kPageSlots + tokens;
  if (sequence.compress_room.holds(held)) return;
  const int32_t rounded = rounded_tokens(held);
  sequence.compress_room.keep(rounded, compress_bytes(cache, *sequence.storage, rounded));
}

void keep_compress_room(Sequence& sequence, int32_t tokens) {
  for (int32_t layer = 0; layer < sequence.cache.n_layers; ++layer) keep_compress_room(sequence, layer, tokens);
}

void compress(Sequence& sequence, int32_t budget) {
  Cache& cache = sequence.cache;
  check(sequence, cache.eviction, budget);
  Calibrators calibrators(cache.allocator);  // undone if anything fails before keep()
  const RoomInUse room(sequence);
  Eviction eviction = cache.eviction;
  const int32_t longest = std::ranges::max(sequence.layers, {}, &Sequence::Layer::length).length;
  eviction.budget = budget != 0 ? budget : eviction.budget_of(longest);
  const Vector<int32_t> budgets = layer_budgets(sequence, eviction);
  const auto heads = static_cast<size_t>(cache.layer(0).kv_heads);
  const Vector<int32_t> none(cache.allocator);
  Vector<Vector<int32_t>> slots(sequence.lists.size(), none, cache.allocator);
  // Pages whose formats a router chooses are made anew, all at once; others are written over.
  const bool routed = sequence.storage->layer_at(0).is_routed();
  std::optional<DensePages> pages;
  if (routed) pages.emplace(sequence);
  Vector<Owned<EvictedLayer>> layers(cache.allocator);
  layers.reserve(routed ? 0 : static_cast<size_t>(cache.n_layers));
  for (int32_t layer = 0; layer < cache.n_layers; ++layer) {
    const auto of_layer = std::span(slots).subspan(static_cast<size_t>(layer) * heads, heads);
    int64_t held = 0;
    for (int32_t head = 0; head < cache.layer(layer).kv_heads; ++head) held += sequence.slots(layer, head);
    if (budgets[static_cast<size_t>(layer)] >= held) continue;
    calibrators.end_waiting(sequence, layer);
    select_layer(sequence, eviction, layer, budgets[static_cast<size_t>(layer)], of_layer);
    for (Vector<int32_t>& of_head : of_layer) of_head.shrink_to_fit();
    if (routed) {
      pages->add_layer(layer, of_layer);
    } else {
      layers.push_back(make_owned<EvictedLayer>(cache.allocator, sequence, layer, of_layer));
    }
  }
  Vector<SlotMasses> masses = sequence.observations->kept(slots);
  BackendMemory staging(cache.backend, cache.allocator);
  Allocator scratch(cache.allocator, 0, "cache");
  if (!layers.empty()) {
    size_t most = 0;
    for (const Sequence::PageList& list : sequence.lists) most = std::max(most, list.size());
    staging.make(EvictedLayer::staging_bytes(cache, *sequence.storage, most));
    scratch.keep_block(EvictedLayer::scratch_bytes(cache, *sequence.storage, most));
  }
  calibrators.keep();
  if (routed) pages->commit();
  for (const Owned<EvictedLayer>& layer : layers) layer->commit(staging, scratch);
  sequence.observations->keep(masses);
  for (const Owned<EvictedLayer>& layer : layers) layer->trim();
  if (sequence.reserved_by_step) release_reserve(sequence);
}

}  // namespace kvq
