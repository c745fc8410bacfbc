#include "cache/compress.h"

#include "cache/dense_pages.h"
#include "cache/observations.h"
#include "core/error.h"

#include <algorithm>
#include <numeric>

namespace kvq {
namespace {

/// Scores of the slots before the window, and which slots stay, of all heads of one layer.
class LayerSelection {
 public:
  LayerSelection(Sequence& sequence, const Eviction& eviction, int32_t layer)
      : sequence_(sequence),
        cache_(sequence.cache),
        eviction_(eviction),
        layer_(layer),
        scores_(StlAllocator<Vector<float>>(cache_.allocator)) {}

  /// Slots of head `head` that stay, in rising order, one list a head. `total`: of all heads together.
  void select(int32_t total, std::span<Vector<int32_t>> slots) {
    score();
    if (eviction_.heads == HeadSplit::kTogether) join();
    Vector<HeadScores> views{StlAllocator<HeadScores>(cache_.allocator)};
    int64_t outside = total;
    for (int32_t head = 0; head < cache_.kv_heads; ++head) {
      outside -= window(head);
      views.push_back(scores_[static_cast<size_t>(head)]);
    }
    Vector<int32_t> counts(views.size(), 0, StlAllocator<int32_t>(cache_.allocator));
    if (eviction_.heads == HeadSplit::kTogether) {
      std::fill(counts.begin(), counts.end(), static_cast<int32_t>(outside / cache_.kv_heads));
    } else {
      split_heads(cache_.allocator, eviction_, views, outside, counts);
    }
    for (int32_t head = 0; head < cache_.kv_heads; ++head) {
      const auto h = static_cast<size_t>(head);
      select_tokens(views[h], counts[h], slots[h]);
      for (int32_t i = 0; i < window(head); ++i) slots[h].push_back(slot_count(head) - window(head) + i);
    }
  }

 private:
  int32_t slot_count(int32_t head) const { return sequence_.slots(layer_, head); }
  int32_t window(int32_t head) const { return std::min(eviction_.window, slot_count(head)); }

  void score() {
    Vector<Vector<float>> masses = sequence_.observations->masses(sequence_, layer_);
    for (int32_t head = 0; head < cache_.kv_heads; ++head) {
      Vector<float>& mass = masses[static_cast<size_t>(head)];
      mass.resize(static_cast<size_t>(slot_count(head) - window(head)));
      scores_.emplace_back(mass.size(), 0.0F, StlAllocator<float>(cache_.allocator));
      if (eviction_.score == TokenScore::kWindow) {
        pool_scores(eviction_, mass, scores_.back());
      } else if (eviction_.score == TokenScore::kMass) {
        scores_.back() = mass;
      } else {
        stream(scores_.back());
      }
    }
  }

  /// The first tokens before all others, then the newer the better.
  void stream(std::span<float> scores) const {
    for (size_t i = 0; i < scores.size(); ++i) {
      const bool first = i < static_cast<size_t>(eviction_.first);
      scores[i] = static_cast<float>(i) + (first ? 3.0F * static_cast<float>(scores.size()) : 0.0F);
    }
  }

  /// What a token is worth for all heads.
  void join() {
    Vector<float>& sum = scores_.front();
    for (size_t head = 1; head < scores_.size(); ++head) {
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += scores_[head][i];
    }
    for (size_t head = 1; head < scores_.size(); ++head) scores_[head] = sum;
  }

  Sequence& sequence_;
  Cache& cache_;
  const Eviction& eviction_;
  int32_t layer_;
  Vector<Vector<float>> scores_;  // [kv_heads][slots before the window]
};

Vector<int32_t> layer_budgets(const Sequence& sequence, const Eviction& eviction) {
  Cache& cache = sequence.cache;
  Vector<LayerTokens> held{StlAllocator<LayerTokens>(cache.allocator)};
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
  Vector<int32_t> budgets(held.size(), 0, StlAllocator<int32_t>(cache.allocator));
  split_layers(cache.allocator, eviction, cache.kv_heads, held, budgets);
  return budgets;
}

void check(const Sequence& sequence, const Eviction& eviction, int32_t budget) {
  if (eviction.budget == 0) fail(KVQ_E_STATE, "the cache's policy has no eviction");
  if (budget != 0 && budget < eviction.window) {
    fail(KVQ_E_ARGUMENT, "options->budget is %d, smaller than the window of %d tokens that are always kept", budget,
         eviction.window);
  }
  if (sequence.cache.backend.recording()) fail(KVQ_E_STATE, "the sequence cannot be compressed while it is captured");
  if (!sequence.reserves.empty())
    fail(KVQ_E_STATE, "the sequence has pages made ahead, which are laid out for all tokens");
  for (int32_t layer = 0; layer < sequence.cache.n_layers; ++layer) {
    if (sequence.length(layer) == 0) fail(KVQ_E_STATE, "layer %d of the sequence is empty", layer);
  }
}

}  // namespace

void compress(Sequence& sequence, int32_t budget, std::span<int32_t> kept) {
  Cache& cache = sequence.cache;
  check(sequence, cache.eviction, budget);
  Eviction eviction = cache.eviction;
  if (budget != 0) eviction.budget = budget;
  const Vector<int32_t> budgets = layer_budgets(sequence, eviction);
  const auto heads = static_cast<size_t>(cache.kv_heads);
  const Vector<int32_t> none{StlAllocator<int32_t>(cache.allocator)};
  Vector<Vector<int32_t>> slots(sequence.lists.size(), none, StlAllocator<Vector<int32_t>>(cache.allocator));
  DensePages pages(sequence);
  for (int32_t layer = 0; layer < cache.n_layers; ++layer) {
    const auto of_layer = std::span(slots).subspan(static_cast<size_t>(layer) * heads, heads);
    int64_t held = 0;
    for (int32_t head = 0; head < cache.kv_heads; ++head) held += sequence.slots(layer, head);
    if (budgets[static_cast<size_t>(layer)] >= held) continue;
    LayerSelection(sequence, eviction, layer).select(budgets[static_cast<size_t>(layer)], of_layer);
    pages.add_layer(layer, of_layer);
  }
  pages.commit();
  sequence.observations->keep(slots);
  for (size_t list = 0; list < kept.size(); ++list) {
    kept[list] = sequence.slots(sequence.layer_of(list), sequence.head_of(list));
  }
}

}  // namespace kvq
