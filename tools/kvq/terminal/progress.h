#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "llama/error.h"
#include "llama/system.h"

namespace cli {

/// The user wants no more.
class Interrupted : public llama::Error {
 public:
  Interrupted() : Error("interrupted") {}
};

/// While one lives, Ctrl-C and a request to end are noted, so that work can be left in order; a second one ends the
/// program.
class Interrupt {
 public:
  Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  static bool requested();
  /// Throws Interrupted if there was one.
  static void check();

 private:
  llama::InterruptHandler handler_;
};

/// A bar on standard error for work that lasts. It is drawn however long a single step takes, and removes itself. If
/// standard error is no terminal, a line now and then.
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

  /// Calls `draw` once `patience` is over and again after each `pause`. Returns whether it ever did.
  bool draw_until(const std::stop_token& stop, std::chrono::milliseconds patience, std::chrono::milliseconds pause,
                  void (Progress::*draw)() const);
  void draw_bar() const;
  void draw_line() const;
  double fraction() const;
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

/// Moves a bar by `total` steps while the library trains something, and ends that on an interruption.
class TrainingBar {
 public:
  TrainingBar(Progress& bar, int64_t total) : bar_(&bar), total_(total) {}

  /// A kvq_progress_hook; `user` is a TrainingBar.
  static int32_t hook(void* user, double done);
  /// The steps that are left.
  void finish();

 private:
  void advance_to(int64_t steps);

  Progress* bar_;
  int64_t total_;
  int64_t steps_ = 0;
};

}  // namespace cli
