#include <algorithm>

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

}  // namespace kvq::tools
