// Budgets and selection, against brute force and the papers' statements.
#include "backend/eviction.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <tuple>
#include <vector>

namespace eviction_test {
namespace {

using kvq::Eviction;
using kvq::HeadScores;
using kvq::HeadSplit;
using kvq::LayerSplit;
using Ints = std::vector<int32_t>;
using Floats = std::vector<float>;

kvq::Allocator& memory() {
  static kvq::Allocator allocator({}, UINT64_MAX);
  return allocator;
}

Ints layers(const Eviction& eviction, int32_t n_layers, int32_t tokens) {
  const std::vector<kvq::LayerTokens> held(static_cast<size_t>(n_layers), {tokens, std::min(eviction.window, tokens)});
  Ints out(held.size());
  kvq::split_layers(memory(), eviction, 1, held, out);
  return out;
}

std::vector<Floats> random_heads(size_t heads, size_t tokens, unsigned seed, int levels = 0) {
  std::mt19937 random(seed);
  std::exponential_distribution<float> peaked(1.0F);
  std::vector<Floats> scores(heads, Floats(tokens));
  for (size_t h = 0; h < heads; ++h) {
    for (float& score : scores[h]) {
      score = std::pow(peaked(random), 1.0F + static_cast<float>(h));
      if (levels > 0) score = static_cast<float>(random() % static_cast<unsigned>(levels));
    }
    const float sum = std::accumulate(scores[h].begin(), scores[h].end(), 1e-9F);
    if (levels == 0)
      std::transform(scores[h].begin(), scores[h].end(), scores[h].begin(), [&](float x) { return x / sum; });
  }
  return scores;
}

Ints heads(const Eviction& eviction, const std::vector<Floats>& scores, int64_t total) {
  const std::vector<HeadScores> views(scores.begin(), scores.end());
  Ints out(scores.size());
  kvq::split_heads(memory(), eviction, views, total, out);
  return out;
}

int64_t sum(const Ints& numbers) { return std::accumulate(numbers.begin(), numbers.end(), int64_t{0}); }

Ints select(const Floats& scores, int32_t count) {
  kvq::Vector<int32_t> indices{kvq::StlAllocator<int32_t>(memory())};
  kvq::select_tokens(scores, count, indices);
  return {indices.begin(), indices.end()};
}

/// Occurrences of each head among the best `total` of a list sorted by score, then index, then head.
Ints best_of_all(const std::vector<Floats>& scores, int64_t total) {
  struct Entry {
    float score;
    size_t index;
    size_t head;
  };
  std::vector<Entry> entries;
  for (size_t h = 0; h < scores.size(); ++h) {
    for (size_t i = 0; i < scores[h].size(); ++i) entries.push_back({scores[h][i], i, h});
  }
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tuple(-a.score, a.index, a.head) < std::tuple(-b.score, b.index, b.head);
  });
  Ints counts(scores.size(), 0);
  for (size_t i = 0; i < static_cast<size_t>(total); ++i) ++counts[entries[i].head];
  return counts;
}

/// Sum of the kept scores if head h keeps its best counts[h].
double kept_mass(const std::vector<Floats>& scores, const Ints& counts) {
  double mass = 0.0;
  for (size_t h = 0; h < scores.size(); ++h) {
    Floats sorted = scores[h];
    std::sort(sorted.rbegin(), sorted.rend());
    mass += std::accumulate(sorted.begin(), sorted.begin() + counts[h], 0.0);
  }
  return mass;
}

}  // namespace

TEST_CASE("largest remainders add up exactly and move no share by one or more") {
  std::mt19937 random(3);
  for (int round = 0; round < 500; ++round) {
    std::vector<double> shares(1 + random() % 9);
    for (double& share : shares) share = static_cast<double>(random() % 1000) / 7.0;
    const double exact = std::accumulate(shares.begin(), shares.end(), 0.0);
    const auto total = static_cast<int64_t>(std::llround(exact));
    for (double& share : shares) share *= static_cast<double>(total) / std::max(exact, 1e-9);
    Ints out(shares.size());
    kvq::round_by_largest_remainder(shares, total, out);
    if (exact == 0.0) continue;
    CHECK(sum(out) == total);
    for (size_t i = 0; i < out.size(); ++i) CHECK(std::abs(out[i] - shares[i]) < 1.0 + 1e-9);
  }
  Ints out(3);
  kvq::round_by_largest_remainder(std::vector<double>{0.5, 0.5, 1.0}, 2, out);
  CHECK(out == Ints{1, 0, 1});  // the first of equals
}

TEST_CASE("a pyramid falls in a line, keeps the whole budget, and stays within the window and the prompt") {
  Eviction eviction;
  eviction.budget = 128;
  CHECK(layers(eviction, 5, 1000) == Ints{128, 128, 128, 128, 128});
  eviction.layers = LayerSplit::kPyramid;
  const Ints wide = layers(eviction, 5, 1000);
  CHECK(sum(wide) == 5 * 128);
  // From 2·128 − 128/20 = 249.6 to 6.4, but the last two are raised to the window of 32 at the others' expense.
  CHECK(wide[0] > wide[1]);
  CHECK(wide[1] > wide[2]);
  CHECK(wide[2] > wide[3]);
  CHECK(wide[4] == 32);
  eviction.window = 4;
  CHECK(layers(eviction, 5, 1000) == Ints{250, 189, 128, 67, 6});  // 249.6, 188.8, 128, 67.2, 6.4
  for (const int32_t tokens : {1, 31, 100, 128, 129, 150, 200, 5000}) {
    for (const int32_t n : {1, 2, 3, 8, 33}) {
      const Ints budgets = layers(eviction, n, tokens);
      CHECK(sum(budgets) == int64_t{n} * std::min(128, tokens));
      CHECK(std::is_sorted(budgets.rbegin(), budgets.rend()));
      CHECK(budgets.front() <= tokens);
      CHECK(budgets.back() >= std::min(4, tokens));
    }
  }
  Ints heads(3);
  const std::vector<kvq::LayerTokens> held{{2000, 16}, {100, 16}, {2000, 16}};
  kvq::split_layers(memory(), eviction, 4, held, heads);
  CHECK(heads == Ints{1400, 100, 36});  // 3 · 4 · 128 = 1536, split as 1.95, 1 and 0.05, but the second has only 100
}

TEST_CASE("adaptive heads get what they have among the best of all, blended with the uniform split") {
  Eviction eviction;
  eviction.heads = HeadSplit::kAdaptive;
  for (unsigned seed = 1; seed <= 30; ++seed) {
    const std::vector<Floats> scores = random_heads(4, 100, seed, seed % 3 == 0 ? 4 : 0);
    const int64_t total = 40 + seed * 9;
    const Ints best = best_of_all(scores, total);
    eviction.alpha = 0.0F;
    CHECK(heads(eviction, scores, total) == best);
    eviction.alpha = 1.0F;
    for (const int32_t count : heads(eviction, scores, total))
      CHECK(std::abs(count - static_cast<double>(total) / 4.0) < 1.0);
    eviction.alpha = 0.5F;
    const Ints blended = heads(eviction, scores, total);
    CHECK(sum(blended) == total);
    for (size_t h = 0; h < 4; ++h) {
      CHECK(std::abs(blended[h] - (0.5 * best[h] + 0.5 * static_cast<double>(total) / 4.0)) < 1.0);
    }
  }
}

TEST_CASE("a reserve keeps each head's best, and the rest goes to the best of all that is left") {
  Eviction eviction;
  eviction.heads = HeadSplit::kReserved;
  const std::vector<Floats> scores = random_heads(3, 60, 5);
  eviction.alpha = 0.0F;
  CHECK(heads(eviction, scores, 45) == best_of_all(scores, 45));
  eviction.alpha = 0.4F;  // 6 of 15 each
  std::vector<Floats> rest = scores;
  for (Floats& head : rest) {
    std::sort(head.rbegin(), head.rend());
    head.erase(head.begin(), head.begin() + 6);
  }
  Ints expected = best_of_all(rest, 45 - 18);
  for (int32_t& count : expected) count += 6;
  CHECK(heads(eviction, scores, 45) == expected);
  eviction.alpha = 1.0F;
  CHECK(heads(eviction, scores, 45) == Ints{15, 15, 15});
}

TEST_CASE("no head gets more than it has, and what it cannot take goes to the others") {
  const std::vector<Floats> scores{Floats(3, 1.0F), Floats(50, 0.1F), Floats(50, 0.2F)};
  for (const HeadSplit split : {HeadSplit::kUniform, HeadSplit::kAdaptive, HeadSplit::kReserved}) {
    Eviction eviction;
    eviction.heads = split;
    const Ints counts = heads(eviction, scores, 60);
    CHECK(sum(counts) == 60);
    CHECK(counts[0] == 3);
    CHECK(std::max(counts[1], counts[2]) <= 50);
    CHECK(sum(heads(eviction, scores, 1000)) == 103);
    CHECK(heads(eviction, scores, 0) == Ints{0, 0, 0});
  }
}

TEST_CASE(
    "the adaptive split without a safeguard never has a larger bound than the uniform one") {  // Ada-KV, theorem 4
  double gained = 0.0;
  for (unsigned seed = 1; seed <= 200; ++seed) {
    const size_t n = 2 + seed % 7;
    const std::vector<Floats> scores = random_heads(n, 64 + seed, seed);
    Eviction eviction;
    const auto total = static_cast<int64_t>(n * (1 + seed % 60));
    const double uniform = kept_mass(scores, heads(eviction, scores, total));
    eviction.heads = HeadSplit::kAdaptive;
    eviction.alpha = 0.0F;
    const double adaptive = kept_mass(scores, heads(eviction, scores, total));
    CHECK(adaptive >= uniform - 1e-6);  // the bound 2hC − 2C·Σ kept is the lower the more is kept
    gained += adaptive - uniform;
  }
  CHECK(gained > 1.0);
}

TEST_CASE("of equal scores the lower position is kept") {
  CHECK(select({1, 3, 2, 3, 2, 0}, 3) == Ints{1, 2, 3});
  CHECK(select({5, 5, 5, 5}, 2) == Ints{0, 1});
  CHECK(select({1, 2}, 5) == Ints{0, 1});
  CHECK(select({}, 1) == Ints{});
  CHECK(select({1, 2}, 0) == Ints{});
}

TEST_CASE("pooling takes the largest or the mean of neighbours, and nothing from beyond the ends") {
  Eviction eviction;
  eviction.kernel = 3;
  const Floats scores{-4, -1, -7, 2, 0};
  Floats out(5);
  kvq::pool_scores(eviction, scores, out);
  CHECK(out == Floats{-1, -1, 2, 2, 2});
  eviction.pooling = kvq::Pooling::kMean;
  kvq::pool_scores(eviction, scores, out);
  CHECK(out == Floats{-2.5F, -4, -2, -5.0F / 3.0F, 1});
  eviction.kernel = 99;
  kvq::pool_scores(eviction, scores, out);
  CHECK(out == Floats(5, -2));
}

}  // namespace eviction_test
