#pragma once

#include "kvq.h"

namespace kvq {

/// The caller's hook, to which several parts of work are one.
class TrainingProgress {
 public:
  TrainingProgress(kvq_progress_hook hook, void* user) : hook_(hook), user_(user) {}

  /// The part of the work from `begin` to `end`, which are shares of this part.
  TrainingProgress part(double begin, double end) const {
    TrainingProgress result(*this);
    result.begin_ = begin_ + begin * (end_ - begin_);
    result.end_ = begin_ + end * (end_ - begin_);
    return result;
  }
  /// Report progress; false if the hook stops or throws.
  bool report(double done) const noexcept {
    if (hook_ == nullptr) return true;
    try {
      return hook_(user_, begin_ + done * (end_ - begin_)) == 0;
    } catch (...) {
      return false;
    }
  }

 private:
  kvq_progress_hook hook_;
  void* user_;
  double begin_ = 0.0;
  double end_ = 1.0;
};

}  // namespace kvq
