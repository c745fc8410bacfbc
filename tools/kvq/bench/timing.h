#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "terminal/progress.h"

namespace cli {

/// Microseconds of one call.
struct Timing {
  double median = 0.0;
  double min = 0.0;
  double max = 0.0;
  int32_t repetitions = 0;
};

/// Of at least one number.
double median(std::vector<double> numbers);

/// Of at least one call.
Timing summary(const std::vector<double>& microseconds);

inline constexpr int64_t kTimingSteps = 30;      // repetitions, at least, unless they take many seconds
inline constexpr int64_t kMaxRepetitions = 300;  // but whole cycles

/// Call `run(i)` for each i in [0, subjects) in turn, again and again, so that whatever disturbs the machine disturbs
/// all alike, and end after a whole number of cycles of `cycle` repetitions. `progress` advances by up to kTimingSteps.
void repeat_in_turn(size_t subjects, int32_t cycle, Progress& progress, const std::function<void(size_t)>& run);

/// The times of each subject, in turn; `run(i)` returns the microseconds of one call. Where successive calls differ,
/// the means of whole cycles of them count.
std::vector<Timing> time_in_turn(size_t subjects, Progress& progress, const std::function<double(size_t)>& run,
                                 int32_t cycle = 1);

}  // namespace cli
