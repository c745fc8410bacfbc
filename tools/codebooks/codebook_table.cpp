#include <algorithm>
#include <array>

#include "codebook_table.h"

namespace kvq::tools {
namespace {

double density(double x) { return std::exp(-0.5 * x * x) / std::sqrt(2.0 * std::numbers::pi); }
double mass_below(double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); }

/// Mean squared error of rounding a normal number to the nearest of ascending levels, exactly.
double scalar_error(const std::vector<double>& levels) {
  double error = 0.0;
  for (size_t i = 0; i < levels.size(); ++i) {
    const double low = i == 0 ? -40.0 : 0.5 * (levels[i - 1] + levels[i]);
    const double high = i + 1 == levels.size() ? 40.0 : 0.5 * (levels[i] + levels[i + 1]);
    const double mass = mass_below(high) - mass_below(low);
    const double first = density(low) - density(high);
    const double second = mass + low * density(low) - high * density(high);
    error += second - 2.0 * levels[i] * first + levels[i] * levels[i] * mass;
  }
  return error;
}

/// The best levels without restrictions (Lloyd, Max), positive half.
std::vector<double> lloyd_max(int32_t count) {
  const auto half = static_cast<size_t>(count / 2);
  std::vector<double> levels(half);
  for (size_t i = 0; i < half; ++i) levels[i] = 3.0 * (static_cast<double>(i) + 0.5) / static_cast<double>(half);
  for (int32_t round = 0; round < 20000; ++round) {
    for (size_t i = 0; i < half; ++i) {
      const double low = i == 0 ? 0.0 : 0.5 * (levels[i - 1] + levels[i]);
      const double high = i + 1 == half ? 40.0 : 0.5 * (levels[i] + levels[i + 1]);
      levels[i] = (density(low) - density(high)) / (mass_below(high) - mass_below(low));
    }
  }
  return levels;
}

std::vector<double> both_signs(const std::vector<int32_t>& half, double unit) {
  std::vector<double> levels;
  for (auto each = half.rbegin(); each != half.rend(); ++each) levels.push_back(-unit * *each);
  for (const int32_t each : half) levels.push_back(unit * each);
  return levels;
}

Table searched_table(int32_t bits) {
  const std::vector<double> ideal = lloyd_max(1 << bits);
  Table best;
  for (double top = bits == 1 ? 100.0 : 90.0; top <= kMaxLevel + 0.49; top += 0.05) {
    const double unit = ideal.back() / top;
    std::vector<int32_t> half;
    for (const double level : ideal)
      half.push_back(std::min(kMaxLevel, static_cast<int32_t>(std::lround(level / unit))));
    double error = scalar_error(both_signs(half, unit));
    for (bool better = true; better;) {
      better = false;
      for (int32_t& level : half) {
        for (const int32_t change : {-1, 1}) {
          level += change;
          const bool legal = level > 0 && level <= kMaxLevel && std::is_sorted(half.begin(), half.end());
          const double changed = legal ? scalar_error(both_signs(half, unit)) : error;
          if (changed < error) {
            error = changed;
            better = true;
          } else {
            level -= change;
          }
        }
      }
    }
    if (error >= best.error) continue;
    best = {{}, unit, error};
    for (auto each = half.rbegin(); each != half.rend(); ++each) best.levels.push_back(-*each);
    best.levels.insert(best.levels.end(), half.begin(), half.end());
  }
  return best;
}

/// 256 levels are all that a byte has: only the unit is to be found.
Table byte_table() {
  Table best;
  for (int32_t i = 0; i < 256; ++i) best.levels.push_back(std::max(-kMaxLevel, i - 128));
  for (double unit = 0.02; unit < 0.05; unit += 0.00005) {
    std::vector<double> levels;
    for (int32_t level = -kMaxLevel; level <= kMaxLevel; ++level) levels.push_back(unit * level);
    const double error = scalar_error(levels);
    if (error < best.error) {
      best.error = error;
      best.unit = unit;
    }
  }
  return best;
}

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
  for (std::vector<float>* axis : {&result.x, &result.y}) std::ranges::transform(*axis, axis->begin(), round);
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
  for (const std::vector<float>* axis : {&points.x, &points.y}) {
    for (const float each : *axis) most = std::max(most, std::abs(static_cast<double>(each)));
  }
  return most;
}

size_t samples_for(size_t points) { return std::clamp<size_t>(2048 * points, size_t{1} << 17U, size_t{1} << 21U); }

}  // namespace

Table quantile_table() {
  constexpr int32_t kLevels = 128;
  constexpr double kStretch = 0.01;
  std::vector<double> ideal;
  double low = 0.0;
  for (int32_t i = 0; i < kLevels; ++i) {
    double high = 40.0;
    if (i + 1 < kLevels) {
      const double mass = 0.5 + 0.5 * (i + 1) / kLevels;
      for (double step = 20.0; step > 1e-12; step *= 0.5) high += mass_below(high) < mass ? step : -step;
    }
    const double mean = (density(low) - density(high)) * 2.0 * kLevels;
    ideal.push_back(mean + kStretch * mean * mean * mean);
    low = high;
  }
  Table table;
  table.unit = ideal.back() / kMaxLevel;
  for (const double level : ideal) table.levels.push_back(static_cast<int32_t>(std::lround(level / table.unit)));
  return table;
}

Table scalar_table(int32_t bits) { return bits == 8 ? byte_table() : searched_table(bits); }

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
