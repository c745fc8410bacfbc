// Scales of new tokens' channels.
#pragma once

#include "formats/layer_scales.h"

#include <cuda_fp16.h>

namespace kvq::cuda {

/// Scales channels [channel, channel + 8) of a token's keys after RoPE, or of its values.
template <bool kKeys>
__device__ inline void scale_eight(const LayerScales& scales, int32_t head, const HeadShape& shape, int32_t channel,
                                   float (&x)[8]) {
  const float* factors = scales.of(kKeys ? ScaleArray::kKeys : ScaleArray::kValues, head, shape) + channel;
  const float* offsets = scales.of(ScaleArray::kOffsets, head, shape) + channel;
  const bool rounds_first = scales.rounds_first();
#pragma unroll
  for (int32_t i = 0; i < 8; ++i) {
    if (rounds_first) x[i] = __half2float(__float2half_rn(x[i]));
    if (!kKeys) x[i] -= __ldg(offsets + i);
    x[i] *= __ldg(factors + i);
  }
}

}  // namespace kvq::cuda
