#pragma once

#include "core/rope.h"
#include "kernels/device/rope.h"

#include <algorithm>

namespace kvq::cuda {

inline RopeArguments rope_arguments(const Rope& rope) {
  RopeArguments result{};
  result.pairing = rope.pairing;
  result.rotary_dim = rope.rotary_dim;
  std::copy(rope.inv_freq.begin(), rope.inv_freq.end(), result.inv_freq);
  return result;
}

}  // namespace kvq::cuda
