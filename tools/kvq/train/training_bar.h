#pragma once

#include <cstdint>

#include "terminal/progress.h"

namespace cli {

inline constexpr int64_t kLayerSteps = 1000;  // of the bar over layers

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
