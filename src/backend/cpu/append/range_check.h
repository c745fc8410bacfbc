#pragma once

#include "backend/backend.h"

#include <array>
#include <atomic>

namespace kvq::cpu {

/// A close look at tokens of an append that may be too large for FP16 when they are stored.
class RangeCheck {
 public:
  explicit RangeCheck(const TokenBatch& tokens) : tokens_(tokens) {}

  /// Look at one side of the tokens of a page. Called from any thread.
  void inspect(Side side, const PageWrite& write) noexcept;

  bool failed() const { return first_unfit_.load(std::memory_order_relaxed) != kNone; }
  /// Throw KVQ_E_ARGUMENT about the first scalar that does not fit, of keys before values.
  [[noreturn]] void report() const;

 private:
  using Head = std::array<float, kMaxHeadDim>;
  static constexpr size_t kNone = SIZE_MAX;

  size_t heads() const { return static_cast<size_t>(tokens_.n) * static_cast<size_t>(tokens_.kv_heads); }
  bool head_fits(Side side, size_t index, Head& storage) const noexcept;

  const TokenBatch& tokens_;
  std::atomic<size_t> first_unfit_{kNone};  // index of a head among those of all keys, then all values
};

}  // namespace kvq::cpu
