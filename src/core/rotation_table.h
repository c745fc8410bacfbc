#pragma once

#include "core/rope.h"

namespace kvq {

/// Rotations e^{i·position·θ} of every pair for any position, from small tables instead of cos and sin: a position is
/// Σ digit · 32^level, and its rotation the product of its digits' rotations in floats, exact to 1e-6.
class RotationTable {
 public:
  static constexpr int32_t kDigits = 32;  // level 0: the slots of a page

  /// `rope` must outlive this.
  RotationTable(Allocator& allocator, const Rope& rope);

  const Rope& rope() const { return rope_; }

  /// Rows are as those of a Rope table: cosines of all pairs, then sines. The position may be negative.
  void fill(int32_t position, float* row) const;
  /// Rows of all digits, [levels][32]: level after level.
  std::span<const float> digits() const { return rows_; }
  /// Rows of positions 0 to 31.
  const float* slots() const { return rows_.data(); }
  /// The same in fixed point.
  const int16_t* fixed_slots() const { return fixed_slots_.data(); }
  /// 32 rows in units of 2^-15, [pairs]{cos[32], sin[32]}.
  void to_fixed_point(const float* rows, int16_t* fixed) const;

 private:
  static constexpr int32_t kLevels = 7;

  const float* row(int32_t level, int32_t digit) const {
    return rows_.data() + static_cast<size_t>(level * kDigits + digit) * 2 * pairs_;
  }

  const Rope& rope_;
  size_t pairs_;
  Vector<float> rows_;  // [kLevels][kDigits]{cos, sin}[pairs]
  Vector<int16_t> fixed_slots_;
};

/// Multiply one head `[head_dim]` in place by the conjugate of a rotation: undo it.
inline void undo_rope(const Rope& rope, const float* row, float* head) {
  for (int32_t pair = 0; pair < rope.pairs(); ++pair) {
    const float c = row[pair];
    const float s = row[rope.pairs() + pair];
    float& x = head[rope.first_channel(pair)];
    float& y = head[rope.second_channel(pair)];
    const float rotated = x * c + y * s;
    y = y * c - x * s;
    x = rotated;
  }
}

}  // namespace kvq
