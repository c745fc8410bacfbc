#include "core/rope.h"

#include <cmath>

namespace kvq {

void Rope::fill_table(std::span<const int32_t> positions, float* table) const {
  for (const int32_t position : positions) {
    for (int32_t pair = 0; pair < pairs(); ++pair) {
      const double turned = angle(position, pair);
      table[pair] = static_cast<float>(std::cos(turned));
      table[pairs() + pair] = static_cast<float>(std::sin(turned));
    }
    table += table_stride();
  }
}

}  // namespace kvq
