#include "backend/eviction.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvq {
namespace {

/// One token of one head, ranked among those of all heads.
struct Candidate {
  float score;
  int32_t index;
  int32_t head;

  bool operator<(const Candidate& other) const {
    if (score != other.score) return score > other.score;
    return index != other.index ? index < other.index : head < other.head;
  }
};

/// Add each head's share of the `total` best candidates to `counts`.
void count_best(Vector<Candidate>& candidates, int64_t total, std::span<int32_t> counts) {
  const auto best = static_cast<size_t>(std::clamp<int64_t>(total, 0, static_cast<int64_t>(candidates.size())));
  std::nth_element(candidates.begin(), candidates.begin() + static_cast<ptrdiff_t>(best), candidates.end());
  for (size_t i = 0; i < best; ++i) ++counts[static_cast<size_t>(candidates[i].head)];
}

int32_t size_of(HeadScores scores) { return static_cast<int32_t>(scores.size()); }

/// Keep the best `reserved` tokens of each head, then the best of all others.
void reserve_then_share(Allocator& allocator, int32_t reserved, std::span<const HeadScores> heads, int64_t total,
                        std::span<int32_t> out) {
  Vector<Candidate> candidates(allocator);
  Vector<int32_t> best(allocator);
  int64_t left = total;
  for (size_t h = 0; h < heads.size(); ++h) {
    out[h] = std::min(reserved, size_of(heads[h]));
    left -= out[h];
    select_tokens(heads[h], out[h], best);
    size_t next = 0;
    for (int32_t i = 0; i < size_of(heads[h]); ++i) {
      if (next < best.size() && best[next] == i) {
        ++next;
      } else {
        candidates.push_back({heads[h][static_cast<size_t>(i)], i, static_cast<int32_t>(h)});
      }
    }
  }
  count_best(candidates, left, out);
}

}  // namespace

int32_t Eviction::budget_of(int32_t tokens) const {
  if (percent <= 0.0F) return budget;
  return std::max(static_cast<int32_t>(std::lround(static_cast<double>(percent) / 100.0 * tokens)), window);
}

void round_by_largest_remainder(std::span<const double> shares, int64_t total, std::span<int32_t> out) {
  int64_t sum = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    out[i] = static_cast<int32_t>(std::floor(shares[i]));
    sum += out[i];
  }
  for (; sum < total; ++sum) {
    size_t largest = 0;
    for (size_t i = 1; i < shares.size(); ++i) {
      if (shares[i] - out[i] > shares[largest] - out[largest]) largest = i;
    }
    ++out[largest];
  }
}

void round_within(Allocator& allocator, std::span<const double> shares, int64_t total, std::span<const int32_t> least,
                  std::span<const int32_t> most, std::span<int32_t> out) {
  const size_t n = shares.size();
  total = std::clamp(total, std::accumulate(least.begin(), least.end(), int64_t{0}),
                     std::accumulate(most.begin(), most.end(), int64_t{0}));
  Vector<double> exact(n, 0.0, allocator);
  Vector<bool> fixed(n, false, allocator);
  // Scale the free shares to the remaining total; where that violates limits, fix the shares on the side with the
  // larger violation, and repeat.
  for (;;) {
    double left = static_cast<double>(total);
    double sum = 0.0;
    size_t free = 0;
    for (size_t i = 0; i < n; ++i) {
      if (fixed[i]) left -= exact[i];
      if (!fixed[i]) sum += shares[i];
      if (!fixed[i]) ++free;
    }
    if (free == 0) break;
    double over = 0.0;
    double under = 0.0;
    for (size_t i = 0; i < n; ++i) {
      if (fixed[i]) continue;
      exact[i] = sum > 0.0 ? left * (shares[i] / sum) : left / static_cast<double>(free);
      over += std::max(exact[i] - most[i], 0.0);
      under += std::max(least[i] - exact[i], 0.0);
    }
    if (over == 0.0 && under == 0.0) break;
    for (size_t i = 0; i < n; ++i) {
      if (fixed[i]) continue;
      if (over >= under ? exact[i] > most[i] : exact[i] < least[i]) {
        exact[i] = over >= under ? most[i] : least[i];
        fixed[i] = true;
      }
    }
  }
  for (size_t i = 0; i < n; ++i) exact[i] = std::clamp<double>(exact[i], least[i], most[i]);
  round_by_largest_remainder(exact, total, out);
}

void split_layers(Allocator& allocator, const Eviction& eviction, int32_t heads, std::span<const LayerTokens> layers,
                  std::span<int32_t> out) {
  const size_t n = layers.size();
  const bool pyramid = eviction.layers == LayerSplit::kPyramid && n > 1;
  const double last = pyramid ? 1.0 / double{eviction.beta} : 1.0;  // in units of the budget
  const double first = 2.0 - last;
  Vector<double> shares(n, 0.0, allocator);
  Vector<int32_t> least(n, 0, allocator);
  Vector<int32_t> most(n, 0, allocator);
  for (size_t i = 0; i < n; ++i) {
    shares[i] = n > 1 ? first + (last - first) * static_cast<double>(i) / static_cast<double>(n - 1) : 1.0;
    least[i] = layers[i].window;
    most[i] = layers[i].tokens;
  }
  round_within(allocator, shares, static_cast<int64_t>(n) * heads * eviction.budget, least, most, out);
}

void pool_scores(const Eviction& eviction, std::span<const float> scores, std::span<float> out) {
  const auto n = static_cast<ptrdiff_t>(scores.size());
  const ptrdiff_t reach = eviction.kernel / 2;
  for (ptrdiff_t i = 0; i < n; ++i) {
    const auto around =
        scores.subspan(static_cast<size_t>(std::max<ptrdiff_t>(i - reach, 0)),
                       static_cast<size_t>(std::min(i + reach + 1, n) - std::max<ptrdiff_t>(i - reach, 0)));
    out[static_cast<size_t>(i)] =
        eviction.pooling == Pooling::kMax
            ? *std::max_element(around.begin(), around.end())
            : std::accumulate(around.begin(), around.end(), 0.0F) / static_cast<float>(around.size());
  }
}

void blend_heads(Allocator& allocator, const Eviction& eviction, std::span<const int32_t> most, int64_t total,
                 std::span<int32_t> counts) {
  const size_t n = most.size();
  const double uniform = static_cast<double>(total) / static_cast<double>(n);
  const double alpha = eviction.heads == HeadSplit::kAdaptive ? double{eviction.alpha} : 1.0;
  const Vector<int32_t> least(n, 0, allocator);
  Vector<double> shares(n, uniform, allocator);
  for (size_t h = 0; h < n && alpha != 1.0; ++h) shares[h] = (1.0 - alpha) * counts[h] + alpha * uniform;
  round_within(allocator, shares, total, least, most, counts);
}

int32_t reserved_of_head(const Eviction& eviction, size_t heads, int64_t total) {
  return static_cast<int32_t>(double{eviction.alpha} * (static_cast<double>(total) / static_cast<double>(heads)));
}

void split_heads(Allocator& allocator, const Eviction& eviction, std::span<const HeadScores> heads, int64_t total,
                 std::span<int32_t> out) {
  Vector<int32_t> most(heads.size(), 0, allocator);
  std::transform(heads.begin(), heads.end(), most.begin(), size_of);
  total = std::min(total, std::accumulate(most.begin(), most.end(), int64_t{0}));
  std::fill(out.begin(), out.end(), 0);
  if (eviction.heads == HeadSplit::kReserved) {
    return reserve_then_share(allocator, reserved_of_head(eviction, heads.size(), total), heads, total, out);
  }
  if (eviction.heads == HeadSplit::kAdaptive) {
    Vector<Candidate> candidates(allocator);
    for (size_t h = 0; h < heads.size(); ++h) {
      for (int32_t i = 0; i < most[h]; ++i) {
        candidates.push_back({heads[h][static_cast<size_t>(i)], i, static_cast<int32_t>(h)});
      }
    }
    count_best(candidates, total, out);
  }
  blend_heads(allocator, eviction, most, total, out);
}

void select_tokens(HeadScores scores, int32_t count, Vector<int32_t>& indices) {
  indices.resize(scores.size());
  std::iota(indices.begin(), indices.end(), 0);
  const auto better = [scores](int32_t a, int32_t b) {
    const float of_a = scores[static_cast<size_t>(a)];
    const float of_b = scores[static_cast<size_t>(b)];
    return of_a != of_b ? of_a > of_b : a < b;
  };
  const auto kept = static_cast<size_t>(std::clamp<int64_t>(count, 0, static_cast<int64_t>(scores.size())));
  std::nth_element(indices.begin(), indices.begin() + static_cast<ptrdiff_t>(kept), indices.end(), better);
  indices.resize(kept);
  std::sort(indices.begin(), indices.end());
}

namespace {

int32_t window_of(const Eviction& eviction, HeadScores masses) { return std::min(eviction.window, size_of(masses)); }

/// The first tokens rank highest, then newer ones before older.
void score_stream(const Eviction& eviction, std::span<float> scores) {
  for (size_t i = 0; i < scores.size(); ++i) {
    const bool first = i < static_cast<size_t>(eviction.first);
    scores[i] = static_cast<float>(i) + (first ? 3.0F * static_cast<float>(scores.size()) : 0.0F);
  }
}

/// Give each token the sum of its scores over all heads.
void join(std::span<Vector<float>> scores) {
  Vector<float>& sum = scores.front();
  for (const Vector<float>& each : scores.subspan(1)) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += each[i];
  }
  for (Vector<float>& each : scores.subspan(1)) each = sum;
}

}  // namespace

void select_slots(Allocator& allocator, const Eviction& eviction, std::span<const HeadScores> masses, int64_t total,
                  std::span<Vector<int32_t>> slots) {
  Vector<Vector<float>> scores(allocator);
  for (const HeadScores& mass : masses) {
    const HeadScores outside = mass.first(mass.size() - static_cast<size_t>(window_of(eviction, mass)));
    scores.emplace_back(outside.size(), 0.0F, allocator);
    if (eviction.score == TokenScore::kWindow) {
      pool_scores(eviction, outside, scores.back());
    } else if (eviction.score == TokenScore::kMass) {
      std::copy(outside.begin(), outside.end(), scores.back().begin());
    } else {
      score_stream(eviction, scores.back());
    }
  }
  if (eviction.heads == HeadSplit::kTogether) join(scores);
  Vector<HeadScores> views(allocator);
  for (size_t head = 0; head < masses.size(); ++head) {
    total -= window_of(eviction, masses[head]);
    views.push_back(scores[head]);
  }
  Vector<int32_t> counts(views.size(), 0, allocator);
  if (eviction.heads == HeadSplit::kTogether) {
    std::fill(counts.begin(), counts.end(), static_cast<int32_t>(total / static_cast<int64_t>(views.size())));
  } else {
    split_heads(allocator, eviction, views, total, counts);
  }
  for (size_t head = 0; head < masses.size(); ++head) {
    select_tokens(views[head], counts[head], slots[head]);
    for (int32_t i = size_of(views[head]); i < size_of(masses[head]); ++i) slots[head].push_back(i);
  }
}

}  // namespace kvq
