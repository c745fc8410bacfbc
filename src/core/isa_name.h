#pragma once

#include <hwy/detect_targets.h>

#include <cstdint>

namespace kvq {

/// Users' name of a Highway target.
constexpr const char* isa_name(int64_t target) {
  if (target == HWY_AVX3) return "avx512";
  if (target == HWY_AVX2) return "avx2";
  return target == HWY_NEON ? "neon" : "baseline";
}

}  // namespace kvq
