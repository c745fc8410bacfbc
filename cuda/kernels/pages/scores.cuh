// Scores of a page: K·Qᵀ in registers.
#pragma once

#include "kernels/pages/geometry.cuh"

namespace kvq::cuda {

/// A lane's scores: token tile 2m + i and query 8n + 2t + c are scores[n][m][2i + c].
template <int NT>
using Scores = float[NT][2][4];

/// Softmax weights as second operands of two products over tokens.
template <int NT>
using Weights = uint32_t[NT][4];

template <int NT>
__device__ __forceinline__ void clear(Scores<NT>& scores) {
#pragma unroll
  for (int32_t n = 0; n < NT; ++n) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) scores[n][0][i] = scores[n][1][i] = 0.0F;
  }
}

/// Multiplies scores by the scales of their queries.
template <int NT>
__device__ __forceinline__ void scale_scores(const float (&row_scale)[NT][2], Scores<NT>& scores) {
#pragma unroll
  for (int32_t n = 0; n < NT; ++n) {
#pragma unroll
    for (int32_t i = 0; i < 8; ++i) scores[n][i / 4][i % 4] *= row_scale[n][i % 2];
  }
}

template <int NT>
__device__ __forceinline__ void cap_scores(float softcap, Scores<NT>& scores) {
#pragma unroll
  for (int32_t n = 0; n < NT; ++n) {
#pragma unroll
    for (int32_t i = 0; i < 8; ++i) {
      float& x = scores[n][i / 4][i % 4];
      x = softcap * tanhf(x / softcap);
    }
  }
}

/// Highest of this lane's scores of query 8n + 2t + c.
template <int NT>
__device__ __forceinline__ float highest_score(const Scores<NT>& s, int32_t n, int32_t c) {
  return fmaxf(fmaxf(s[n][0][c], s[n][0][c + 2]), fmaxf(s[n][1][c], s[n][1][c + 2]));
}

}  // namespace kvq::cuda
