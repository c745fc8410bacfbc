#include "weights/rotation.h"

#include "core/hadamard.h"
#include "core/splitmix.h"

namespace kvq::weights {
namespace {

void apply_signs(std::span<const uint8_t> signs, std::span<float> x) {
  for (size_t i = 0; i < x.size(); ++i) {
    if ((signs[i / 8] >> (i % 8) & 1) != 0) x[i] = -x[i];
  }
}

/// Its own inverse.
void hadamard_blocks(std::span<float> x) {
  const auto in = static_cast<int32_t>(x.size());
  const int32_t together = rotated_together(in);
  hadamard(x.data(), together);
  if (together < in) hadamard(x.data() + together, in - together);
}

}  // namespace

void make_signs(uint64_t seed, std::span<uint8_t> signs) {
  for (size_t i = 0; i < signs.size(); ++i) signs[i] = static_cast<uint8_t>(splitmix64(seed, i) >> 56U);
}

void rotate(std::span<const uint8_t> signs, std::span<float> x) {
  apply_signs(signs, x);
  hadamard_blocks(x);
}

void rotate_back(std::span<const uint8_t> signs, std::span<float> x) {
  hadamard_blocks(x);
  apply_signs(signs, x);
}

}  // namespace kvq::weights
