// Parallel loops of a long call, in steps between which it reports its progress and can be cancelled.
#pragma once

#include "core/error.h"
#include "core/parallel.h"
#include "core/training_progress.h"

#include <algorithm>
#include <cstdint>

namespace kvq::weights {

/// Threads of a caller, whose number is unknown.
inline constexpr int32_t kMostPieces = 16;

/// Times are nanoseconds on one thread of a usual processor, within a factor of about 3.
class SteppedLoops {
 public:
  /// `time`: of all loops together. `rows`: of the matrix.
  SteppedLoops(Parallel& parallel, const TrainingProgress& progress, double time, int32_t rows)
      : parallel_(parallel), progress_(progress), time_(time), rows_(rows) {}

  /// Run body(i) for every i in [0, n), which takes `time` on average. Throws KVQ_E_CANCELLED.
  template <typename Body>
  void run(int32_t n, double time, const Body& body) {
    const auto together = static_cast<int32_t>(std::clamp(kStep * threads() / time, 1.0, 1e6));
    for (int32_t begin = 0; begin < n; begin += together) {
      const int32_t count = std::min(together, n - begin);
      parallel_.run(count, [&body, begin](int32_t i) noexcept { body(begin + i); });
      done(count * time);
    }
  }
  /// Count work outside of run().
  void done(double time) {
    done_ = std::min(done_ + time, time_);
    report(done_ / time_);
  }
  void rows_done(int32_t rows) { rows_done_ = std::min(rows, rows_); }
  void finish() { report(1.0); }

  Parallel& parallel() const { return parallel_; }
  int32_t threads() const { return parallel_.n_threads() > 0 ? parallel_.n_threads() : kMostPieces; }

  /// Time of a step: short enough for a user who waits, long beside the time of waking threads.
  static constexpr double kStep = 5e6;

 private:
  void report(double share) const {
    if (progress_.report(share)) return;
    fail(KVQ_E_CANCELLED, "quantizing was cancelled after %d of %d rows", rows_done_, rows_);
  }

  Parallel& parallel_;
  const TrainingProgress progress_;
  const double time_;
  const int32_t rows_;
  double done_ = 0.0;
  int32_t rows_done_ = 0;
};

}  // namespace kvq::weights
