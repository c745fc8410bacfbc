// One path at a time: every backend's search must repeat its result.
#include "formats/gain_shape/trellis_search.h"

#include "core/limits.h"

#include <algorithm>
#include <array>

namespace kvq::gain_shape {
namespace {

using Costs = std::array<int32_t, kStates>;

/// Least cost of a code in each subset, relative to the best of all.
std::array<int32_t, kSubsets> subset_costs(int32_t bits, int16_t target) {
  std::array<int32_t, kSubsets> costs{};
  if (target == kNoTarget) return costs;
  for (int32_t subset = 0; subset < kSubsets; ++subset) {
    int32_t& least = costs[static_cast<size_t>(subset)];
    least = distance(target, levels(bits)[subset]);
    for (int32_t other = 1; other < 1 << (bits - 1); ++other) {
      least = std::min(least, distance(target, levels(bits)[kSubsets * other + subset]));
    }
  }
  const int32_t best = *std::min_element(costs.begin(), costs.end());
  for (int32_t& each : costs) each = std::min(each - best, kLargestCost);
  return costs;
}

/// Bits of a code below the highest.
int32_t other_bits(int32_t bits, int16_t target, int32_t subset) {
  int32_t best = 0;
  for (int32_t other = 1; target != kNoTarget && other < 1 << (bits - 1); ++other) {
    const auto cost = [&](int32_t each) { return distance(target, levels(bits)[kSubsets * each + subset]); };
    if (cost(other) < cost(best)) best = other;
  }
  return best;
}

/// A walk once around the chain.
class Pass {
 public:
  Pass(int32_t bits, std::span<const int16_t> targets) : bits_(bits), targets_(targets) {}

  void run(size_t first, Costs costs) {
    first_ = first;
    for (size_t i = 0; i < targets_.size(); ++i) {
      const auto subsets = subset_costs(bits_, targets_[step(i)]);
      Costs next;
      oldest_[i] = 0;
      for (uint32_t state = 0; state < kStates; ++state) {
        const auto cost = [&](uint32_t oldest) {
          const uint32_t before = state >> 1U | oldest << (kMemory - 1);
          return costs[before] + subsets[static_cast<size_t>(parities(state | oldest << kMemory))];
        };
        oldest_[i] |= uint64_t{cost(1) < cost(0) ? 1U : 0U} << state;
        next[state] = std::min(cost(0), cost(1));
      }
      costs = next;
      if ((i + 1) % kRestSteps != 0) continue;
      const int32_t least = *std::min_element(costs.begin(), costs.end());
      for (int32_t& each : costs) each -= least;
    }
    best_ = static_cast<uint32_t>(std::min_element(costs.begin(), costs.end()) - costs.begin());
  }

  uint32_t best() const { return best_; }
  /// The register after walk step i with all seven bits, the newest at the bottom, if its last six are `state`.
  uint32_t window(size_t i, uint32_t state) const {
    return state | static_cast<uint32_t>(oldest_[i] >> state & 1U) << kMemory;
  }

 private:
  size_t step(size_t i) const { return (first_ + i) % targets_.size(); }

  int32_t bits_;
  std::span<const int16_t> targets_;
  size_t first_ = 0;
  uint32_t best_ = 0;
  std::array<uint64_t, kMaxChain> oldest_{};  // oldest bit of the best path to each state
};

}  // namespace

void search_trellis(int32_t bits, std::span<const int16_t> targets, std::span<uint8_t> codes) {
  Pass pass(bits, targets);
  const size_t n = targets.size();
  const size_t half = n / 2;
  pass.run(half, Costs{});
  uint32_t seam = pass.best();
  for (size_t i = n; i > n - half; --i) seam = pass.window(i - 1, seam) >> 1U;

  Costs start;
  start.fill(kImpossible);
  start[seam] = 0;
  pass.run(0, start);
  uint32_t state = seam;
  for (size_t i = n; i > 0; --i) {
    const uint32_t window = pass.window(i - 1, state);
    const uint32_t other = static_cast<uint32_t>(other_bits(bits, targets[i - 1], parities(window)));
    codes[i - 1] = static_cast<uint8_t>((window & 1U) << static_cast<uint32_t>(bits - 1) | other);
    state = window >> 1U;
  }
}

}  // namespace kvq::gain_shape
