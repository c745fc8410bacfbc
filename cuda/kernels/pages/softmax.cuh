// Online softmax over pages (Milakov & Gimelshein, "Online normalizer calculation for softmax").
#pragma once

#include "kernels/pages/outputs.cuh"
#include "kernels/pages/scores.cuh"

namespace kvq::cuda {

/// State of queries 8n + 2t + c.
template <int NT>
struct SoftmaxState {
  float maximum[NT][2];
  float sum[NT][2];  // over this lane's tokens
  // The part of `sum` whose values are not relative to trained centres. During a run of such pages, `sum` before the
  // run is subtracted.
  float uncentred[NT][2];
};

template <int NT>
__device__ __forceinline__ void clear(SoftmaxState<NT>& state) {
#pragma unroll
  for (int32_t n = 0; n < NT; ++n) {
#pragma unroll
    for (int32_t c = 0; c < 2; ++c) {
      state.maximum[n][c] = minus_infinity();
      state.sum[n][c] = 0.0F;
      state.uncentred[n][c] = 0.0F;
    }
  }
}

/// Rarely called: most pages of a long list hold no new maximum.
template <typename G, int NT>
__device__ __forceinline__ void raise_maxima(const Scores<NT>& s, SoftmaxState<NT>& state, Outputs<G>& outputs) {
#pragma unroll
  for (int32_t n = 0; n < NT; ++n) {
#pragma unroll
    for (int32_t c = 0; c < 2; ++c) {
      float highest = highest_score(s, n, c);
      highest = fmaxf(highest, __shfl_xor_sync(kAll, highest, 4));
      highest = fmaxf(highest, __shfl_xor_sync(kAll, highest, 8));
      highest = fmaxf(highest, __shfl_xor_sync(kAll, highest, 16));
      const float raised = fmaxf(state.maximum[n][c], highest);
      const float factor = raised == minus_infinity() ? 1.0F : exp2_fast(state.maximum[n][c] - raised);
      state.maximum[n][c] = raised;
      state.sum[n][c] *= factor;
      state.uncentred[n][c] *= factor;
      rescale(outputs, n, c, factor);
    }
  }
}

/// Gains of a lane's tokens, one per tile.
struct TokenGains {
  float of[4];

  __device__ __forceinline__ float apply(float weight, int32_t tile) const { return weight * of[tile]; }
};
struct NoGains {
  __device__ __forceinline__ float apply(float weight, int32_t /*tile*/) const { return weight; }
};

/// Marks the begin (factor −1) or end (1) of a run of pages whose values are not relative to trained centres.
template <int NT>
__device__ __forceinline__ void note_uncentred(SoftmaxState<NT>& state, float factor) {
#pragma unroll
  for (int32_t n = 0; n < NT; ++n) {
#pragma unroll
    for (int32_t c = 0; c < 2; ++c) state.uncentred[n][c] = fmaf(factor, state.sum[n][c], state.uncentred[n][c]);
  }
}

/// Computes the weights of a page's tokens relative to the maxima so far, times the gains of their values, and with
/// kTwice also without gains. Rescales outputs when maxima rise.
template <bool kTwice, typename G, typename Gains, int NT>
__device__ __forceinline__ void softmax(const Scores<NT>& s, const Gains& gains, SoftmaxState<NT>& state,
                                        Outputs<G>& outputs, Weights<NT>& p, Weights<NT>& without_gains) {
  bool rises = false;
#pragma unroll
  for (int32_t n = 0; n < NT; ++n) {
#pragma unroll
    for (int32_t c = 0; c < 2; ++c) {
      const float highest = highest_score(s, n, c);
      rises = rises || highest > state.maximum[n][c];
    }
  }
  if (__any_sync(kAll, rises)) raise_maxima(s, state, outputs);
#pragma unroll
  for (int32_t n = 0; n < NT; ++n) {
    float reference[2];
#pragma unroll
    for (int32_t c = 0; c < 2; ++c) {
      reference[c] = state.maximum[n][c] == minus_infinity() ? 0.0F : state.maximum[n][c];
    }
#pragma unroll
    for (int32_t m = 0; m < 2; ++m) {
      float e[4];
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        e[i] = exp2_fast(s[n][m][i] - reference[i & 1]);
        state.sum[n][i & 1] += e[i];
      }
      if constexpr (kTwice) {
        without_gains[n][2 * m] = transpose8x8(pack(e[0], e[1]));
        without_gains[n][2 * m + 1] = transpose8x8(pack(e[2], e[3]));
      }
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) e[i] = gains.apply(e[i], 2 * m + i / 2);
      p[n][2 * m] = transpose8x8(pack(e[0], e[1]));
      p[n][2 * m + 1] = transpose8x8(pack(e[2], e[3]));
    }
  }
}

}  // namespace kvq::cuda
