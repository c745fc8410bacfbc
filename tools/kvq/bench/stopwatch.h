#pragma once

#include <chrono>
#include <ctime>

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

}  // namespace cli
