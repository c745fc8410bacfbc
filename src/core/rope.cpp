#include "core/rope.h"

#include <cmath>

namespace kvq {

void Rope::fill_table(std::span<const int32_t> positions, float* table) const {
  for (const int32_t position : positions) {
    for (int32_t pair = 0; pair < pairs(); ++pair) {
      table[pair] = static_cast<float>(std::cos(angle(position, pair)));
      table[pairs() + pair] = static_cast<float>(std::sin(angle(position, pair)));
    }
    table += table_stride();
  }
}

}  // namespace kvq
