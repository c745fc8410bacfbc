#include "core/rotation_table.h"

#include <algorithm>
#include <cmath>

namespace kvq {

RotationTable::RotationTable(Allocator& allocator, const Rope& rope)
    : rope_(rope),
      pairs_(static_cast<size_t>(rope.pairs())),
      rows_(static_cast<size_t>(kLevels * kDigits) * 2 * pairs_, allocator),
      fixed_slots_(static_cast<size_t>(kDigits) * 2 * pairs_, allocator) {
  double unit = 1.0;
  float* to = rows_.data();
  for (int32_t level = 0; level < kLevels; ++level, unit *= kDigits) {
    for (int32_t digit = 0; digit < kDigits; ++digit, to += 2 * pairs_) {
      for (size_t pair = 0; pair < pairs_; ++pair) {
        const double angle = digit * unit * static_cast<double>(rope.inv_freq[pair]);
        to[pair] = static_cast<float>(std::cos(angle));
        to[pairs_ + pair] = static_cast<float>(std::sin(angle));
      }
    }
  }
  to_fixed_point(slots(), fixed_slots_.data());
}

void RotationTable::to_fixed_point(const float* rows, int16_t* fixed) const {
  for (size_t slot = 0; slot < kDigits; ++slot, rows += 2 * pairs_) {
    for (size_t pair = 0; pair < pairs_; ++pair) {
      int16_t* of_pair = fixed + pair * 2 * kDigits + slot;
      of_pair[0] = static_cast<int16_t>(std::lround(rows[pair] * 32767.0F));
      of_pair[kDigits] = static_cast<int16_t>(std::lround(rows[pairs_ + pair] * 32767.0F));
    }
  }
}

void RotationTable::fill(int32_t position, float* out) const {
  if (position < 0) {
    fill(-position, out);
    for (size_t pair = 0; pair < pairs_; ++pair) out[pairs_ + pair] = -out[pairs_ + pair];
    return;
  }
  std::copy_n(row(0, position % kDigits), 2 * pairs_, out);
  position /= kDigits;
  for (int32_t level = 1; position > 0; ++level, position /= kDigits) {
    const int32_t digit = position % kDigits;
    if (digit == 0) continue;
    const float* factor = row(level, digit);
    for (size_t pair = 0; pair < pairs_; ++pair) {
      const float c = out[pair] * factor[pair] - out[pairs_ + pair] * factor[pairs_ + pair];
      out[pairs_ + pair] = out[pair] * factor[pairs_ + pair] + out[pairs_ + pair] * factor[pair];
      out[pair] = c;
    }
  }
}

}  // namespace kvq
