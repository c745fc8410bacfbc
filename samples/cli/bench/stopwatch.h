#pragma once

#include <chrono>

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

}  // namespace cli
