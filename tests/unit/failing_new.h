// Makes an allocation of the C++ runtime fail: this program replaces operator new.
#pragma once

#include <cstdint>

namespace kvq_test {

/// During its lifetime, allocation number `n` of this thread (1 is the next one) throws std::bad_alloc.
class FailingNew {
 public:
  explicit FailingNew(int64_t n) noexcept;
  ~FailingNew();
  FailingNew(const FailingNew&) = delete;
  FailingNew& operator=(const FailingNew&) = delete;

  /// Whether that many allocations were made.
  bool failed() const noexcept;
};

}  // namespace kvq_test
