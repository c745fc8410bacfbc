// Rotation angles of many positions from those of few.
#if defined(KVQ_APPEND_ROTATE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KVQ_APPEND_ROTATE_INL_H
#undef KVQ_APPEND_ROTATE_INL_H
#else
#define KVQ_APPEND_ROTATE_INL_H
#endif

#include <hwy/highway.h>

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

#if HWY_HAVE_FLOAT64
/// Stores x as float if every number within 2^-50 rounds to the same float. The product of two factors of magnitude 1,
/// each off by at most 2^-53, is off by less than 5·2^-53, and the C library's result by another 2^-53.
template <class D, class V>
HWY_INLINE bool store_certain(D d, V x, float* out) {
  const hn::Rebind<float, D> df;
  const auto error = hn::Set(d, 0x1p-50);
  const auto low = hn::DemoteTo(df, hn::Sub(x, error));
  hn::StoreU(low, df, out);
  return hn::AllTrue(df, hn::Eq(low, hn::DemoteTo(df, hn::Add(x, error))));
}

template <class D>
HWY_INLINE bool fill_pairs(D d, const double* base, const double* offset, int32_t pairs, float* row) {
  const auto base_cos = hn::LoadU(d, base);
  const auto base_sin = hn::LoadU(d, base + pairs);
  const auto offset_cos = hn::LoadU(d, offset);
  const auto offset_sin = hn::LoadU(d, offset + pairs);
  const auto cos = hn::Sub(hn::Mul(base_cos, offset_cos), hn::Mul(base_sin, offset_sin));
  const auto sin = hn::Add(hn::Mul(base_sin, offset_cos), hn::Mul(base_cos, offset_sin));
  return store_certain(d, cos, row) && store_certain(d, sin, row + pairs);
}

inline bool fill_rotation(const double* base, const double* offset, int32_t pairs, float* row) {
  const hn::ScalableTag<double> d;
  const auto lanes = static_cast<int32_t>(hn::Lanes(d));
  int32_t i = 0;
  for (; i + lanes <= pairs; i += lanes) {
    if (!fill_pairs(d, base + i, offset + i, pairs, row + i)) return false;
  }
  for (; i < pairs; ++i) {
    if (!fill_pairs(hn::CappedTag<double, 1>(), base + i, offset + i, pairs, row + i)) return false;
  }
  return true;
}

#else  // as above, a number at a time: Highway has no vectors of double for WebAssembly

inline bool store_certain(double x, float* out) {
  *out = static_cast<float>(x - 0x1p-50);
  return *out == static_cast<float>(x + 0x1p-50);
}

inline bool fill_rotation(const double* base, const double* offset, int32_t pairs, float* row) {
  for (int32_t i = 0; i < pairs; ++i) {
    const double cos = base[i] * offset[i] - base[i + pairs] * offset[i + pairs];
    const double sin = base[i + pairs] * offset[i] + base[i] * offset[i + pairs];
    if (!store_certain(cos, row + i) || !store_certain(sin, row + i + pairs)) return false;
  }
  return true;
}

#endif

}  // namespace kvq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
