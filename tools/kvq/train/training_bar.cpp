#include "train/training_bar.h"

#include <algorithm>

#include "terminal/interrupt.h"

namespace cli {

int32_t TrainingBar::hook(void* user, double done) {
  auto& self = *static_cast<TrainingBar*>(user);
  self.advance_to(std::min(static_cast<int64_t>(done * static_cast<double>(self.total_)), self.total_));
  return Interrupt::requested() ? 1 : 0;
}

void TrainingBar::finish() { advance_to(total_); }

void TrainingBar::advance_to(int64_t steps) {
  bar_->advance(steps - steps_);
  steps_ = steps;
}

}  // namespace cli
