// Checks of the RoPE options that caches and trainers share.
#pragma once

#include "api/boundary.h"
#include "core/rope.h"

#include <cmath>

namespace kvq::api {

template <typename Options>
void check_rope(const Options& options) {
  require_range(options.rope, KVQ_ROPE_NONE, KVQ_ROPE_INTERLEAVED, "options->rope");
  if (options.rope == KVQ_ROPE_NONE) return;
  require_range(options.rotary_dim, 0, options.head_dim, "options->rotary_dim");
  if (options.rotary_dim % 2 != 0) {
    fail(KVQ_E_ARGUMENT, "options->rotary_dim is %d, must be even", options.rotary_dim);
  }
  if (options.inv_freq == nullptr && !(options.rope_base > 0.0F && std::isfinite(options.rope_base))) {
    fail(KVQ_E_ARGUMENT, "options->rope_base is %g, must be positive and finite",
         static_cast<double>(options.rope_base));
  }
  const int32_t rotary_dim = options.rotary_dim != 0 ? options.rotary_dim : options.head_dim;
  for (int32_t i = 0; i < rotary_dim / 2; ++i) {
    if (options.inv_freq != nullptr) {
      if (std::isfinite(options.inv_freq[i])) continue;
      fail(KVQ_E_ARGUMENT, "options->inv_freq[%d] is %g, must be finite", i, static_cast<double>(options.inv_freq[i]));
    }
    if (std::isfinite(Rope::frequency(options.rope_base, rotary_dim, i))) continue;
    fail(KVQ_E_ARGUMENT, "options->rope_base is %g, too small: the frequency of pair %d would be infinite",
         static_cast<double>(options.rope_base), i);
  }
}

}  // namespace kvq::api
