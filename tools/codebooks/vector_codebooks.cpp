#include <algorithm>
#include <array>

#include "codebook_table.h"

namespace kvq::tools {
namespace {

struct Points {
  std::vector<float> x;
  std::vector<float> y;
};

/// The nearest point to each sample, and the mean squared error of a coordinate.
double assign(const Points& points, const Points& samples, std::vector<uint32_t>& nearest) {
  const size_t n = points.x.size();
  nearest.resize(samples.x.size());
  double sum = 0.0;
  constexpr size_t kGroup = 16;  // samples that pass the points together
  for (size_t i = 0; i < samples.x.size(); i += kGroup) {
    std::array<float, kGroup> best;
    std::array<uint32_t, kGroup> at{};
    best.fill(std::numeric_limits<float>::max());
    for (uint32_t p = 0; p < n; ++p) {
      for (size_t k = 0; k < kGroup; ++k) {
        const float dx = samples.x[i + k] - points.x[p];
        const float dy = samples.y[i + k] - points.y[p];
        const float distance = dx * dx + dy * dy;
        at[k] = distance < best[k] ? p : at[k];
        best[k] = distance < best[k] ? distance : best[k];
      }
    }
    for (size_t k = 0; k < kGroup; ++k) {
      sum += static_cast<double>(best[k]);
      nearest[i + k] = at[k];
    }
  }
  return 0.5 * sum / static_cast<double>(samples.x.size());
}

Points normal_points(uint64_t stream, size_t n, double deviation) {
  Points points;
  for (size_t i = 0; i < n; ++i) {
    points.x.push_back(static_cast<float>(deviation * normal(stream, 2 * i)));
    points.y.push_back(static_cast<float>(deviation * normal(stream, 2 * i + 1)));
  }
  return points;
}

/// Points at golden angles, as the seeds of a sunflower, with the density that is best for many of them: that of normal
/// pairs with twice the variance.
Points spiral(size_t n) {
  Points points;
  for (size_t i = 0; i < n; ++i) {
    const double share = (static_cast<double>(i) + 0.5) / static_cast<double>(n);
    const double radius = 2.0 * std::sqrt(-std::log1p(-share));
    const double angle = std::numbers::pi * (3.0 - std::sqrt(5.0)) * static_cast<double>(i);
    points.x.push_back(static_cast<float>(radius * std::cos(angle)));
    points.y.push_back(static_cast<float>(radius * std::sin(angle)));
  }
  return points;
}

/// k-means of normal pairs. From a spiral it ends lower than from random points, by 1 to 2 %. Points are shaken less
/// and less on the way, which leads out of poor arrangements.
Points k_means(size_t n, size_t n_samples, int32_t rounds, uint64_t stream) {
  const Points samples = normal_points(stream, n_samples, 1.0);
  Points points = spiral(n);
  std::vector<uint32_t> nearest;
  for (int32_t round = 0; round < rounds; ++round) {
    assign(points, samples, nearest);
    std::vector<double> x(n);
    std::vector<double> y(n);
    std::vector<double> count(n);
    for (size_t i = 0; i < n_samples; ++i) {
      x[nearest[i]] += static_cast<double>(samples.x[i]);
      y[nearest[i]] += static_cast<double>(samples.y[i]);
      count[nearest[i]] += 1.0;
    }
    const double cooling = 1.0 - static_cast<double>(round) / (0.7 * rounds);
    const double shake = cooling > 0.0 ? 0.25 * cooling * cooling * std::sqrt(2.0 / static_cast<double>(n)) : 0.0;
    for (size_t p = 0; p < n; ++p) {
      const auto draw = static_cast<uint64_t>(round) * 2 * n + 2 * p;
      if (count[p] == 0.0) continue;
      points.x[p] = static_cast<float>(x[p] / count[p] + shake * normal(stream + 1, draw));
      points.y[p] = static_cast<float>(y[p] / count[p] + shake * normal(stream + 1, draw + 1));
    }
  }
  return points;
}

Points rounded(const Points& points, double unit) {
  const auto round = [unit](float value) {
    const double level =
        std::clamp(std::round(static_cast<double>(value) / unit), -double{kMaxLevel}, double{kMaxLevel});
    return static_cast<float>(level * unit);
  };
  Points result = points;
  for (float& each : result.x) each = round(each);
  for (float& each : result.y) each = round(each);
  return result;
}

std::vector<int32_t> levels_of(const Points& points, double unit) {
  std::vector<int32_t> levels;
  for (size_t i = 0; i < points.x.size(); ++i) {
    levels.push_back(static_cast<int32_t>(std::lround(static_cast<double>(points.x[i]) / unit)));
    levels.push_back(static_cast<int32_t>(std::lround(static_cast<double>(points.y[i]) / unit)));
  }
  return levels;
}

double largest(const Points& points) {
  double most = 0.0;
  for (const float each : points.x) most = std::max(most, std::abs(static_cast<double>(each)));
  for (const float each : points.y) most = std::max(most, std::abs(static_cast<double>(each)));
  return most;
}

size_t samples_for(size_t points) { return std::clamp<size_t>(2048 * points, size_t{1} << 17U, size_t{1} << 21U); }

}  // namespace

Table vector_table(int32_t quarters) {
  const size_t n = size_t{1} << static_cast<size_t>(quarters / 2);
  const Points points = k_means(n, samples_for(n), n < 1024 ? 100 : 200, 1000 + 10 * static_cast<uint64_t>(quarters));
  const Points fresh = normal_points(2000 + static_cast<uint64_t>(quarters), samples_for(n), 1.0);
  std::vector<uint32_t> nearest;
  Table best;
  for (double top = kMaxLevel; top <= 1.7 * kMaxLevel;
       top *= 1.01) {  // few points lie beyond the last level: they move in
    const double unit = largest(points) / top;
    const Points candidate = rounded(points, unit);
    const double error = assign(candidate, fresh, nearest);
    if (error < best.error) best = {levels_of(candidate, unit), unit, error};
  }
  return best;
}

Table trellis_table(int32_t index_bits) {
  const size_t n = size_t{1} << static_cast<size_t>(index_bits);
  const Points points = k_means(n, size_t{1} << 20U, 100, 3000 + 10 * static_cast<uint64_t>(index_bits));
  const double unit = largest(points) / kMaxLevel;
  return {levels_of(rounded(points, unit), unit), unit, 0.0};
}

}  // namespace kvq::tools
