#include "backend/key_sample.h"

#include "core/sizes.h"

#include <algorithm>
#include <cmath>

namespace kvq {
SoftKernel::SoftKernel(Allocator& allocator, const KeyEncoder& stage, float temperature)
    : scale(1.0F / temperature),
      norms(static_cast<size_t>(stage.width()), HUGE_VALF, allocator),
      k(size(stage.width(), stage.width()), allocator),
      transposed(k.size(), allocator) {
  const int32_t codes = stage.codes();
  const auto at = [&](int32_t row, int32_t column) { return size(row, stage.width()) + static_cast<size_t>(column); };
  // c(a, a) = (1 + i)·z_a
  for (int32_t a = 0; a < codes; ++a) norms[static_cast<size_t>(a)] = 0.5F * stage.norms(0)[at(a, a)];
  float least = HUGE_VALF;
  for (int32_t b = 0; b < codes; ++b) {
    for (int32_t a = 0; a < codes; ++a) {
      const float mixed = stage.norms(0)[at(b, a)] - norms[static_cast<size_t>(a)] - norms[static_cast<size_t>(b)];
      k[at(a, b)] = mixed;
      least = std::min(least, mixed);
    }
  }
  for (int32_t a = 0; a < codes; ++a) {
    for (int32_t b = 0; b < codes; ++b) {
      k[at(a, b)] = transposed[at(b, a)] = std::exp((least - k[at(a, b)]) * scale);
    }
  }
}

}  // namespace kvq
