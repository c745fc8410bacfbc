// Softmax of one row of scores, in base 2.
#if defined(KVQ_ATTEND_SOFTMAX_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KVQ_ATTEND_SOFTMAX_INL_H
#undef KVQ_ATTEND_SOFTMAX_INL_H
#else
#define KVQ_ATTEND_SOFTMAX_INL_H
#endif

#include "backend/cpu/attend/kernels.h"

#include <hwy/highway.h>

#include <cmath>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// 2^x for x ≤ 127; 0 below the normal range. Relative error under 2e-7.
template <class D, class V>
HWY_INLINE V exp2_vector(D d, V x) {
  const hn::RebindToSigned<D> di;
  const V whole = hn::Round(x);
  const V f = hn::Sub(x, whole);  // [-0.5, 0.5]
  // Taylor series of 2^f; the first term left out, (f ln 2)^7 / 7!, is below 1.2e-7.
  V y = hn::Set(d, 1.5403530e-4F);
  y = hn::MulAdd(y, f, hn::Set(d, 1.3333558e-3F));
  y = hn::MulAdd(y, f, hn::Set(d, 9.6181291e-3F));
  y = hn::MulAdd(y, f, hn::Set(d, 5.5504109e-2F));
  y = hn::MulAdd(y, f, hn::Set(d, 2.4022651e-1F));
  y = hn::MulAdd(y, f, hn::Set(d, 6.9314718e-1F));
  y = hn::MulAdd(y, f, hn::Set(d, 1.0F));
  const auto exponent = hn::ShiftLeft<23>(hn::ConvertTo(di, hn::Max(whole, hn::Set(d, -126.0F))));
  const V scaled = hn::BitCast(d, hn::Add(hn::BitCast(di, y), exponent));
  return hn::IfThenElseZero(hn::Ge(x, hn::Set(d, -126.0F)), scaled);
}

/// cap · tanh(x / cap) on base-2 logits, by way of natural ones.
template <class D, class V>
HWY_INLINE V soft_cap(D d, V x, float cap) {
  // tanh(z) = 1 − 2 / (e^{2z} + 1); x is z·cap·log2(e), so e^{2z} = 2^{2x / cap}. Beyond ±40 tanh is ±1 in FP32.
  const V power = hn::Min(hn::Mul(x, hn::Set(d, 2.0F / cap)), hn::Set(d, 40.0F));
  const V tanh = hn::Sub(hn::Set(d, 1.0F), hn::Div(hn::Set(d, 2.0F), hn::Add(exp2_vector(d, power), hn::Set(d, 1.0F))));
  return hn::Mul(tanh, hn::Set(d, cap * 1.44269504F));
}

inline float softmax(float* scores, int32_t n, float softcap, SoftmaxState* state) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int32_t>(hn::Lanes(d));
  const float minus_infinity = -std::numeric_limits<float>::infinity();
  auto maximum = hn::Set(d, minus_infinity);
  for (int32_t i = 0; i < n; i += lanes) {
    auto x = hn::LoadU(d, scores + i);
    if (softcap > 0.0F) {
      x = hn::IfThenElse(hn::Gt(x, hn::Set(d, minus_infinity)), soft_cap(d, x, softcap), x);
      hn::StoreU(x, d, scores + i);
    }
    maximum = hn::Max(maximum, x);
  }
  const float highest = hn::GetLane(hn::MaxOfLanes(d, maximum));
  const float updated = highest > state->maximum ? highest : state->maximum;
  const auto reference = hn::Set(d, updated == minus_infinity ? 0.0F : updated);
  auto sum = hn::Zero(d);
  for (int32_t i = 0; i < n; i += lanes) {
    const auto p = exp2_vector(d, hn::Sub(hn::LoadU(d, scores + i), reference));
    hn::StoreU(p, d, scores + i);
    sum = hn::Add(sum, p);
  }
  const float factor = state->maximum == updated ? 1.0F : std::exp2(state->maximum - updated);
  state->maximum = updated;
  state->sum = hn::GetLane(hn::MulAdd(hn::Set(d, state->sum), hn::Set(d, factor), hn::SumOfLanes(d, sum)));
  return factor;
}

inline void blend(float* out, float a, const float* x, float b, int32_t n) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int32_t>(hn::Lanes(d));
  for (int32_t i = 0; i < n; i += lanes) {
    hn::StoreU(hn::MulAdd(hn::LoadU(d, x + i), hn::Set(d, b), hn::Mul(hn::LoadU(d, out + i), hn::Set(d, a))), d,
               out + i);
  }
}

}  // namespace kvq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
