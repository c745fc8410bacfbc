#include "core/rope.h"

#include <cmath>

namespace kvq {

void Rope::fill_table(std::span<const int32_t> positions, float* table) const {
  for (const int32_t position : positions) {
    for (int32_t pair = 0; pair < pairs(); ++pair) {
      const double angle = static_cast<double>(position) * static_cast<double>(inv_freq[static_cast<size_t>(pair)]);
      *table++ = static_cast<float>(std::cos(angle));
      *table++ = static_cast<float>(std::sin(angle));
    }
  }
}

}  // namespace kvq
