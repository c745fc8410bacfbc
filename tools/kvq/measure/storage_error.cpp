#include "measure/storage_error.h"

#include <algorithm>
#include <array>

#include "measure/generation.h"
#include "terminal/interrupt.h"

namespace cli {
namespace {

constexpr int32_t kStoredChunk = 256;  // tokens that the model takes at once

/// A sequence that is only stored and decoded.
class Store {
 public:
  Store(Engine& engine, const llama::CacheFormat& format)
      : cache_(llama::make_model_cache(engine.model, engine.context, format)), sequence_(cache_) {}

  void clear() { sequence_ = kvq::Sequence(cache_); }

  void append(int32_t layer, int32_t n, const float* k, const float* v) { sequence_.append(layer, n, k, v, KVQ_F32); }

  struct Head {
    std::vector<float> keys;  // [tokens][head_dim]
    std::vector<float> values;
  };

  Head decode(int32_t layer, int32_t head, size_t tokens, size_t head_dim) const {
    Head decoded{std::vector<float>(tokens * head_dim), std::vector<float>(tokens * head_dim)};
    sequence_.decode(layer, head, 0, static_cast<int32_t>(tokens), decoded.keys, decoded.values);
    return decoded;
  }

 private:
  kvq::Cache cache_;
  kvq::Sequence sequence_;
};

/// Squared errors and squared norms of one kind of numbers.
struct Sums {
  double error = 0.0;
  double norm = 0.0;

  void add(std::span<const float> x, std::span<const float> stored) {
    for (size_t i = 0; i < x.size(); ++i) {
      const double difference = double{stored[i]} - double{x[i]};
      error += difference * difference;
      norm += double{x[i]} * double{x[i]};
    }
  }
  double ratio() const { return norm > 0.0 ? error / norm : 0.0; }
};

/// Add the pages of one side that are not stored as they are.
void add_pages(std::span<const float> x, std::span<const float> stored, size_t page, Sums& sums) {
  for (size_t first = 0; first < x.size(); first += page) {
    const size_t n = std::min(page, x.size() - first);
    const auto exact = x.subspan(first, n);
    const auto decoded = stored.subspan(first, n);
    if (!std::ranges::equal(exact, decoded)) sums.add(exact, decoded);
  }
}

}  // namespace

std::vector<LayerError> measure_storage_error(Engine& engine, const Spec& format,
                                              const std::vector<std::span<const int32_t>>& windows,
                                              Progress& progress) {
  const llama::ModelConfig& config = engine.model.config();
  const auto dim = static_cast<size_t>(config.head_dim);
  const Interrupt interrupt;
  llama::Session session(engine.model, engine.context, nullptr);
  Store exact(engine, nullptr);
  Store stored(engine, format);
  session.observe([&](int32_t layer, const llama::ObservedAttention& seen) {
    exact.append(layer, seen.n, seen.k, seen.v);
    stored.append(layer, seen.n, seen.k, seen.v);
  });
  std::vector<std::array<Sums, 2>> sums(static_cast<size_t>(config.n_layers));
  for (const std::span<const int32_t> window : windows) {
    session.clear();
    exact.clear();
    stored.clear();
    prefill(session, window, kStoredChunk, progress);
    for (int32_t layer = 0; layer < config.n_layers; ++layer) {
      for (int32_t head = 0; head < config.kv_heads; ++head) {
        Interrupt::check();
        const Store::Head x = exact.decode(layer, head, window.size(), dim);
        const Store::Head decoded = stored.decode(layer, head, window.size(), dim);
        auto& [keys, values] = sums[static_cast<size_t>(layer)];
        add_pages(x.keys, decoded.keys, KVQ_PAGE_SLOTS * dim, keys);
        add_pages(x.values, decoded.values, KVQ_PAGE_SLOTS * dim, values);
      }
      progress.advance(static_cast<int64_t>(window.size()));
    }
  }
  std::vector<LayerError> errors;
  for (const auto& [keys, values] : sums) errors.push_back({keys.ratio(), values.ratio()});
  return errors;
}

}  // namespace cli
