#pragma once

#include "backend/backend.h"

#include <array>
#include <atomic>

namespace kvq::cpu {

/// Second check of append tokens that may overflow FP16.
class RangeCheck {
 public:
  RangeCheck(const TokenBatch& tokens, const PageWrites& writes) : tokens_(tokens), writes_(writes) {}

  /// Inspect one side of a page's tokens; callable from any thread.
  void inspect(Side side, const PageWrite& write) noexcept;

  bool failed() const { return first_unfit_.load(std::memory_order_relaxed) != kNone; }
  /// Throw KVQ_E_ARGUMENT about the first value that does not fit, keys before values.
  [[noreturn]] void report() const;

 private:
  using Head = std::array<float, kMaxHeadDim>;
  static constexpr size_t kNone = SIZE_MAX;

  size_t heads() const { return static_cast<size_t>(tokens_.n) * static_cast<size_t>(tokens_.kv_heads); }
  bool head_fits(Side side, size_t index, const LayerScales& scales, Head& storage) const noexcept;
  /// Scales of a token in one of the writes.
  LayerScales scales_of(int32_t token) const noexcept;

  const TokenBatch& tokens_;
  const PageWrites& writes_;
  std::atomic<size_t> first_unfit_{kNone};  // index of the first head, all keys before all values
};

}  // namespace kvq::cpu
