#include "bench/disturbance.h"

#include <algorithm>
#include <cmath>

#include "terminal/output.h"

namespace cli {
namespace {

// Times decide, which are known on every machine: where there are more threads than work, much of the processor is
// missing, always. On quiet machines the mean is a tenth to a fifth above the best.
constexpr double kMuchSlower = 1.4;
constexpr double kMuchMissing = 0.15;

constexpr double kTenPercent = 10.0;

std::string tens_of_percent(double share) {
  return number_text(kTenPercent * std::round(kTenPercent * share), 0) + " %";
}

}  // namespace

double ProcessorUse::missing_share(int32_t threads) const {
  if (wall_seconds <= 0.0) return 0.0;
  return std::clamp(1.0 - processor_seconds / (wall_seconds * threads), 0.0, 1.0);
}

bool Disturbance::is_busy() const { return slowdown >= kMuchSlower; }

std::string disturbance_text(const Disturbance& disturbance, const std::string& consequence) {
  if (!disturbance.is_busy()) return "";
  const double taken = std::min(disturbance.missing_share, 1.0 - 1.0 / disturbance.slowdown);
  // A virtual machine may not know what its host gives to others.
  const std::string what = taken >= kMuchMissing
                               ? "Something else uses the processor (about " + tens_of_percent(taken) + " of it)"
                               : "Something slows the processor down (calls take " +
                                     number_text(disturbance.slowdown, 1) + " times as long as the best)";
  return what + ":" + consequence + ".\n";
}

}  // namespace cli
