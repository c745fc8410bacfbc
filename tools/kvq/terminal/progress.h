#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

namespace cli {

/// A bar on standard error for work that lasts, if that is a terminal; otherwise nothing. It is drawn however long a
/// single step takes, and removes itself.
class Progress {
 public:
  /// \param patience  how long work may take without a bar.
  Progress(std::string label, int64_t total, std::chrono::milliseconds patience = std::chrono::seconds(2));
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void advance(int64_t steps);

 private:
  using Clock = std::chrono::steady_clock;

  void draw_until(std::stop_token stop, std::chrono::milliseconds patience);
  void draw() const;
  std::string time_text(double fraction) const;

  std::string label_;
  int64_t total_;
  std::atomic<int64_t> done_{0};
  Clock::time_point begin_;
  std::atomic<Clock::duration> last_{Clock::duration::zero()};  // advance, since the beginning
  std::mutex mutex_;
  std::condition_variable_any stopped_;
  std::jthread drawing_;
};

}  // namespace cli
