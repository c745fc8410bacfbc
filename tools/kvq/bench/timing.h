#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "terminal/progress.h"

namespace cli {

/// The time since it was made.
class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }
  double microseconds() const { return std::chrono::duration<double, std::micro>(Clock::now() - begin_).count(); }

 private:
  using Clock = std::chrono::steady_clock;

  Clock::time_point begin_ = Clock::now();
};

/// The time that all threads of this process have had of the processor since it was made.
class ProcessorStopwatch {
 public:
  double seconds() const { return static_cast<double>(std::clock() - begin_) / CLOCKS_PER_SEC; }

 private:
  std::clock_t begin_ = std::clock();
};

/// Microseconds of one call.
struct Timing {
  double median = 0.0;
  double min = 0.0;
  double max = 0.0;
  int32_t repetitions = 0;
};

/// Median of at least one number.
double median(std::vector<double> numbers);

/// Summary of at least one call.
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

/// What was had of the processor while something computed that uses all of its threads.
struct ProcessorUse {
  double wall_seconds = 0.0;
  double processor_seconds = 0.0;  // of all threads of this process

  /// What `run` returns, whose time is added.
  template <class Run>
  auto watch(Run&& run) {
    const Stopwatch wall;
    const ProcessorStopwatch processor;
    auto result = run();
    wall_seconds += wall.seconds();
    processor_seconds += processor.seconds();
    return result;
  }

  /// Share of the time of so many threads that this process did not get. Some of it is its own: threads sleep while
  /// they wait for each other.
  double missing_share(int32_t threads) const;
};

/// How far from quiet a machine was while the same work was done many times.
struct Disturbance {
  double slowdown = 1.0;       // mean time as a multiple of the best
  double missing_share = 0.0;  // as ProcessorUse has it

  bool is_busy() const;
};

/// What is to be said of a busy machine, and what follows; empty if the machine was quiet. \param consequence  what
/// stands behind the colon, with what comes before it.
std::string disturbance_text(const Disturbance& disturbance, const std::string& consequence);

}  // namespace cli
