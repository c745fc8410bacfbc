#include "cache/attend_space.h"

namespace kvq {

Owned<AttendSpace> AttendSpaces::take() {
  {
    const std::lock_guard lock(mutex_);
    if (free_ != nullptr) {
      Owned<AttendSpace> first = std::move(free_);
      free_ = std::move(first->next);
      return first;
    }
  }
  return make_owned<AttendSpace>(allocator_, allocator_, attention_);
}

void AttendSpaces::give_back(Owned<AttendSpace> space) noexcept {
  const std::lock_guard lock(mutex_);
  space->next = std::move(free_);
  free_ = std::move(space);
}

}  // namespace kvq
