// Softmax of one row of scores with AVX-512's scaling instruction, which computes 2^x with a polynomial and one more
// step.
#include "backend/cpu/dispatch/avx512vnni.h"
#include "backend/cpu/dispatch/highway.h"

#include <hwy/base.h>
#include <immintrin.h>

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx2,fma,f16c")

namespace kvq::cpu {
namespace {

/// 2^x for x ≤ 0, −infinity included; relative error under 2e-7.
inline __m512 exp2_vector(__m512 x) {
  // Far below the smallest float: the result is 0, and no step yields NaN.
  x = _mm512_max_ps(x, _mm512_set1_ps(-200.0F));
  const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 f = _mm512_sub_ps(x, whole);
  // Taylor series of 2^f, as in the portable kernel.
  __m512 y = _mm512_fmadd_ps(_mm512_set1_ps(1.5403530e-4F), f, _mm512_set1_ps(1.3333558e-3F));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(9.6181291e-3F));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(5.5504109e-2F));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(2.4022651e-1F));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(6.9314718e-1F));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.0F));
  return _mm512_scalef_ps(y, whole);
}

/// Without a soft cap; n is a multiple of 32.
float softmax_plain(float* scores, int32_t n, SoftmaxState* state) {
  const float minus_infinity = -__builtin_inff();
  __m512 maxima[2] = {_mm512_set1_ps(minus_infinity), _mm512_set1_ps(minus_infinity)};
  for (int32_t i = 0; i < n; i += 32) {
    maxima[0] = _mm512_max_ps(maxima[0], _mm512_loadu_ps(scores + i));
    maxima[1] = _mm512_max_ps(maxima[1], _mm512_loadu_ps(scores + i + 16));
  }
  const float highest = _mm512_reduce_max_ps(_mm512_max_ps(maxima[0], maxima[1]));
  const float updated = highest > state->maximum ? highest : state->maximum;
  const __m512 reference = _mm512_set1_ps(updated == minus_infinity ? 0.0F : updated);
  __m512 sums[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
  for (int32_t i = 0; i < n; i += 32) {
    const __m512 a = exp2_vector(_mm512_sub_ps(_mm512_loadu_ps(scores + i), reference));
    const __m512 b = exp2_vector(_mm512_sub_ps(_mm512_loadu_ps(scores + i + 16), reference));
    _mm512_storeu_ps(scores + i, a);
    _mm512_storeu_ps(scores + i + 16, b);
    sums[0] = _mm512_add_ps(sums[0], a);
    sums[1] = _mm512_add_ps(sums[1], b);
  }
  float factor = 1.0F;
  if (state->maximum != updated) {
    factor = _mm512_cvtss_f32(exp2_vector(_mm512_set1_ps(state->maximum - updated)));
  }
  state->maximum = updated;
  state->sum = __builtin_fmaf(state->sum, factor, _mm512_reduce_add_ps(_mm512_add_ps(sums[0], sums[1])));
  return factor;
}

float softmax(float* scores, int32_t n, float softcap, SoftmaxState* state) {
  return softcap > 0.0F ? avx512_softmax()(scores, n, softcap, state) : softmax_plain(scores, n, state);
}

}  // namespace
}  // namespace kvq::cpu

HWY_POP_ATTRIBUTES

namespace kvq::cpu {

void set_avx512vnni_softmax(KernelTable& table) { table.softmax = softmax; }

}  // namespace kvq::cpu
