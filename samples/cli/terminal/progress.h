#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace cli {

/// A bar on standard error for work that has lasted over two seconds, if that is a terminal; otherwise nothing. The bar
/// removes itself.
class Progress {
 public:
  Progress(std::string label, int64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void advance(int64_t steps);

 private:
  using Clock = std::chrono::steady_clock;

  void draw(Clock::time_point now);

  std::string label_;
  int64_t total_;
  int64_t done_ = 0;
  bool terminal_;
  bool drawn_ = false;
  Clock::time_point begin_;
  Clock::time_point next_draw_;
};

}  // namespace cli
