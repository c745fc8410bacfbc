#include "bench/timing.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "terminal/output.h"

namespace cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kEnoughTime{1000};      // after kTimingSteps
constexpr std::chrono::milliseconds kTimingPatience{8000};  // even before them

bool is_enough(int64_t repetitions, Clock::duration elapsed) {
  if (repetitions == 0) return false;
  return repetitions >= kMaxRepetitions || elapsed > (repetitions < kTimingSteps ? kTimingPatience : kEnoughTime);
}

// Means of whole cycles of calls.
std::vector<double> cycle_means(std::span<const double> calls, size_t cycle) {
  std::vector<double> means;
  for (; !calls.empty(); calls = calls.subspan(cycle)) {
    const std::span<const double> one = calls.first(cycle);
    means.push_back(std::accumulate(one.begin(), one.end(), 0.0) / static_cast<double>(cycle));
  }
  return means;
}

// Times decide, which are known on every machine: where there are more threads than work, much of the processor is
// missing, always. On quiet machines the mean is a tenth to a fifth above the best.
constexpr double kMuchSlower = 1.4;
constexpr double kMuchMissing = 0.15;

constexpr double kTenPercent = 10.0;

std::string tens_of_percent(double share) {
  return number_text(kTenPercent * std::round(kTenPercent * share), 0) + " %";
}

}  // namespace

double median(std::vector<double> numbers) {
  std::ranges::sort(numbers);
  const size_t n = numbers.size();
  return (numbers[(n - 1) / 2] + numbers[n / 2]) / 2;
}

Timing summary(const std::vector<double>& microseconds) {
  const auto [min, max] = std::ranges::minmax(microseconds);
  return {
      .median = median(microseconds), .min = min, .max = max, .repetitions = static_cast<int32_t>(microseconds.size())};
}

void repeat_in_turn(size_t subjects, int32_t cycle, Progress& progress, const std::function<void(size_t)>& run) {
  const Clock::time_point begin = Clock::now();
  for (int64_t repetition = 0; repetition % cycle != 0 || !is_enough(repetition, Clock::now() - begin); ++repetition) {
    for (size_t turn = 0; turn < subjects; ++turn) {
      run(repetition % 2 == 0 ? turn : subjects - 1 - turn);  // nobody always follows the same one
    }
    if (repetition < kTimingSteps) progress.advance(1);
  }
}

std::vector<Timing> time_in_turn(size_t subjects, Progress& progress, const std::function<double(size_t)>& run,
                                 int32_t cycle) {
  for (size_t i = 0; i < subjects; ++i) run(i);  // warm-up: work space, threads
  std::vector<std::vector<double>> samples(subjects);
  repeat_in_turn(subjects, cycle, progress, [&](size_t i) { samples[i].push_back(run(i)); });
  std::vector<Timing> timings;
  for (const std::vector<double>& sample : samples)
    timings.push_back(summary(cycle_means(sample, static_cast<size_t>(cycle))));
  return timings;
}

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
