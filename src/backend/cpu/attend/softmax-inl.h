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

/// 2^x for x ≤ 127; 0 below the normal range. Relative error under 2.2e-7; 2^0 is 1.
template <class D, class V>
HWY_INLINE V exp2_vector(D d, V x) {
  const hn::RebindToSigned<D> di;
  // The nearest integer ends up in the low bits of a float.
  const V shift = hn::Set(d, 12582912.0F);
  const V shifted = hn::Add(x, shift);
  const V f = hn::Sub(x, hn::Sub(shifted, shift));  // [-0.5, 0.5]
  // The polynomial of degree 5 with the least relative error, 7.5e-8, its constant rounded to 1.
  V y = hn::Set(d, 1.3276472E-3F);
  y = hn::MulAdd(y, f, hn::Set(d, 9.675541E-3F));
  y = hn::MulAdd(y, f, hn::Set(d, 5.550713E-2F));
  y = hn::MulAdd(y, f, hn::Set(d, 0.2402212F));
  y = hn::MulAdd(y, f, hn::Set(d, 0.69314694F));
  y = hn::MulAdd(y, f, hn::Set(d, 1.0F));
  const V scaled = hn::BitCast(d, hn::Add(hn::BitCast(di, y), hn::ShiftLeft<23>(hn::BitCast(di, shifted))));
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
  // Two vectors at a time, n being a multiple of a page's slots: additions wait for each other.
  constexpr int kVectors = 2;
  hn::Vec<decltype(d)> maxima[kVectors];
  hn::Vec<decltype(d)> sums[kVectors];
  for (int a = 0; a < kVectors; ++a) {
    maxima[a] = hn::Set(d, minus_infinity);
    sums[a] = hn::Zero(d);
  }
  for (int32_t i = 0; i < n; i += kVectors * lanes) {
    for (int a = 0; a < kVectors; ++a) {
      float* at = scores + i + a * lanes;
      auto x = hn::LoadU(d, at);
      if (softcap > 0.0F) {
        x = hn::IfThenElse(hn::Gt(x, hn::Set(d, minus_infinity)), soft_cap(d, x, softcap), x);
        hn::StoreU(x, d, at);
      }
      maxima[a] = hn::Max(maxima[a], x);
    }
  }
  const float highest = hn::GetLane(hn::MaxOfLanes(d, hn::Max(maxima[0], maxima[1])));
  const float updated = highest > state->maximum ? highest : state->maximum;
  const auto reference = hn::Set(d, updated == minus_infinity ? 0.0F : updated);
  for (int32_t i = 0; i < n; i += kVectors * lanes) {
    for (int a = 0; a < kVectors; ++a) {
      float* at = scores + i + a * lanes;
      const auto p = exp2_vector(d, hn::Sub(hn::LoadU(d, at), reference));
      hn::StoreU(p, d, at);
      sums[a] = hn::Add(sums[a], p);
    }
  }
  const float factor = state->maximum == updated ? 1.0F : std::exp2(state->maximum - updated);
  state->maximum = updated;
  const auto sum = hn::SumOfLanes(d, hn::Add(sums[0], sums[1]));
  state->sum = hn::GetLane(hn::MulAdd(hn::Set(d, state->sum), hn::Set(d, factor), sum));
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
