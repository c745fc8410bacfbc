// Ada-KV, theorem 4, on the attention of a real prompt. With queries, keys and values of the embedded model, caches
// that evict keep what kvq_compress chooses; what that is worth is computed here in float64 from the stored keys.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "llama/model.h"
#include "llama/tokenizer.h"
#include "program_run.h"
#include "prompt_attention.h"
#include "runs.h"
#include "support/float_formats.h"
#include "support/places.h"

namespace adaptive_bound_test {
namespace {

constexpr int32_t kPrompt = 600;
constexpr int32_t kWindow = 32;

/// A cache that holds the prompt and has seen its newest queries.
class PromptCache {
 public:
  PromptCache(llama::Model& model, const kvq::Context& context, const std::string& policy,
              const std::vector<PromptTensors>& layers)
      : config_(model.config()),
        policy_(kvq::Policy::load(context, policy)),
        cache_(llama::make_model_cache(model, context, {policy_})),
        sequence_(cache_) {
    const auto width = static_cast<size_t>(config_.q_heads * config_.head_dim);
    std::vector<float> out(kWindow * width);
    for (int32_t layer = 0; layer < config_.n_layers; ++layer) {
      const PromptTensors& of_layer = layers[static_cast<size_t>(layer)];
      sequence_.append(layer, kPrompt, of_layer.k, of_layer.v);
      cache_.attend(layer, {.sequences = kvq::pointers(sequence_),
                            .query_counts = std::array{kWindow},
                            .q = std::span(of_layer.q).subspan((kPrompt - kWindow) * width),
                            .output = out});
    }
  }

  /// Keys of a head as attention sees them.
  Doubles keys(int32_t layer, int32_t head) const {
    std::vector<float> keys(static_cast<size_t>(kPrompt) * static_cast<size_t>(config_.head_dim));
    sequence_.decode(layer, head, 0, kPrompt, keys);
    return {keys.begin(), keys.end()};
  }

  /// Positions that each head keeps of the prompt, [n_layers, kv_heads].
  std::vector<std::vector<int32_t>> kept(int32_t budget) const {
    kvq::Sequence fork = sequence_.fork();
    std::vector<int32_t> counts(static_cast<size_t>(config_.n_layers * config_.kv_heads));
    auto options = kvq::initialised<kvq_compress_options>();
    options.budget = budget;
    options.kept = counts.data();
    fork.compress(options);
    std::vector<std::vector<int32_t>> positions;
    for (size_t list = 0; list < counts.size(); ++list) {
      const auto layer = static_cast<int32_t>(list) / config_.kv_heads;
      const auto head = static_cast<int32_t>(list) % config_.kv_heads;
      positions.emplace_back(static_cast<size_t>(counts[list]));
      fork.decode(layer, head, 0, counts[list], {}, {}, positions.back());
    }
    return positions;
  }

 private:
  const llama::ModelConfig& config_;
  kvq::Policy policy_;
  kvq::Cache cache_;
  kvq::Sequence sequence_;
};

/// What each token of the prompt is worth for a KV head: the mean weight over the newest queries and the query heads.
Doubles scores(const llama::ModelConfig& config, const PromptCache& cache, const std::vector<PromptTensors>& layers,
               int32_t layer, int32_t head) {
  const int32_t group = config.q_heads / config.kv_heads;
  const Doubles keys = cache.keys(layer, head);
  std::vector<int32_t> seen(kPrompt - kWindow);
  std::iota(seen.begin(), seen.end(), 0);
  Doubles sum(kPrompt, 0.0);
  for (int32_t position = kPrompt - kWindow; position < kPrompt; ++position) {
    seen.push_back(position);
    for (int32_t of_group = 0; of_group < group; ++of_group) {
      const int32_t row = position * config.q_heads + head * group + of_group;
      const float* q = layers[static_cast<size_t>(layer)].q.data() + int64_t{row} * config.head_dim;
      Doubles query(q, q + config.head_dim);
      for (double& x : query) x = kvq_test::round_to(x, kvq_test::kHalf);  // as the library keeps it
      const Doubles weights = attention_weights(rotated(config, query, position), keys, seen);
      std::transform(weights.begin(), weights.end(), sum.begin(), sum.begin(), std::plus<>());
    }
  }
  for (double& score : sum) score /= kWindow * group;
  return sum;
}

double score_of(const Doubles& scores, const std::vector<int32_t>& positions) {
  double sum = 0.0;
  for (const int32_t position : positions) sum += scores[static_cast<size_t>(position)];
  return sum;
}

/// The largest sum of `count` of the numbers.
double best(Doubles numbers, int64_t count) {
  std::sort(numbers.rbegin(), numbers.rend());
  return std::accumulate(numbers.begin(), numbers.begin() + count, 0.0);
}

}  // namespace

TEST_CASE("on a real prompt no layer's bound is larger with the adaptive split than with the uniform one") {
  const kvq::Context context = make_context();
  llama::Model model(demo_model(), 1);
  const llama::ModelConfig& config = model.config();
  const llama::Tokenizer tokenizer(demo_model() + "/tokenizer.json");
  std::vector<int32_t> tokens = tokenizer.encode(contents(demo_model() + "/sample.txt").substr(0, 8 * kPrompt));
  REQUIRE(tokens.size() >= kPrompt);
  tokens.resize(kPrompt);
  const std::vector<PromptTensors> layers = observe(model, context, tokens);
  // Without pooling a score is what the theorem speaks of.
  const std::string adaptive_policy = "eviction: {method: adasnap, alpha: 0, kernel: 1, budget: 64}";
  const std::string uniform_policy = "eviction: {method: snapkv, kernel: 1, budget: 64}";
  const PromptCache adaptive(model, context, adaptive_policy, layers);
  const PromptCache uniform(model, context, uniform_policy, layers);

  const auto heads = static_cast<size_t>(config.kv_heads);
  double gained = 0.0;
  constexpr double kRounding = 1e-5;  // the library scores in float32
  for (int32_t layer = 0; layer < config.n_layers; ++layer) {
    CAPTURE(layer);
    std::vector<Doubles> of_heads;
    Doubles windows;
    Doubles all_before;
    for (int32_t head = 0; head < config.kv_heads; ++head) {
      of_heads.push_back(scores(config, uniform, layers, layer, head));
      const auto window = of_heads.back().end() - kWindow;
      windows.push_back(std::accumulate(window, of_heads.back().end(), 0.0));
      all_before.insert(all_before.end(), of_heads.back().begin(), window);
    }
    const double in_windows = std::accumulate(windows.begin(), windows.end(), 0.0);
    for (const int32_t budget : {48, 64, 128, 256}) {
      CAPTURE(budget);
      const std::vector<std::vector<int32_t>> by_adaptive = adaptive.kept(budget);
      const std::vector<std::vector<int32_t>> by_uniform = uniform.kept(budget);
      double adaptive_score = 0.0;
      double uniform_score = 0.0;
      double best_of_heads = in_windows;
      size_t slots = 0;
      for (size_t head = 0; head < heads; ++head) {
        const size_t list = static_cast<size_t>(layer) * heads + head;
        adaptive_score += score_of(of_heads[head], by_adaptive[list]);
        uniform_score += score_of(of_heads[head], by_uniform[list]);
        best_of_heads += best(Doubles(of_heads[head].begin(), of_heads[head].end() - kWindow), budget - kWindow);
        slots += by_adaptive[list].size();
        CHECK(by_uniform[list].size() == static_cast<size_t>(budget));
      }
      CHECK(slots == heads * static_cast<size_t>(budget));
      // Both splits keep the best that they can, so the theorem is about these scores and not about their rounding.
      CHECK(uniform_score == doctest::Approx(best_of_heads).epsilon(kRounding));
      CHECK(adaptive_score ==
            doctest::Approx(in_windows + best(all_before, static_cast<int64_t>(slots) - kWindow * config.kv_heads))
                .epsilon(kRounding));
      // The bounds, in units of C.
      const double uniform_bound = 2.0 * static_cast<double>(heads) - 2.0 * uniform_score;
      const double adaptive_bound = 2.0 * static_cast<double>(heads) - 2.0 * adaptive_score;
      CHECK(adaptive_bound <= uniform_bound + kRounding);
      CHECK(adaptive_bound >= 0.0);
      gained += uniform_bound - adaptive_bound;
    }
  }
  CHECK(gained > 0.1);
}

}  // namespace adaptive_bound_test
