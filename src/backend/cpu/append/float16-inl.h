// Floats to FP16, round to nearest even.
#if defined(KVQ_APPEND_FLOAT16_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KVQ_APPEND_FLOAT16_INL_H
#undef KVQ_APPEND_FLOAT16_INL_H
#else
#define KVQ_APPEND_FLOAT16_INL_H
#endif

#include <hwy/highway.h>

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Bits of the nearest FP16 values. Magnitudes are below 65536, as in all pages.
template <class D>
HWY_INLINE hn::Vec<hn::Rebind<uint16_t, D>> to_half(D d, hn::Vec<D> x) {
  const hn::Rebind<uint16_t, D> d16;
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_NEON
  const hn::Rebind<hwy::float16_t, D> dh;
  (void)d;
  return hn::BitCast(d16, hn::DemoteTo(dh, x));
#else
  // Highway 1.0 truncates where the processor lacks the instruction. Same result as to_float16() in core/float16.h.
  const hn::Rebind<uint32_t, D> du;
  const hn::Rebind<int32_t, D> di;
  const auto bits = hn::BitCast(du, x);
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7FFFFFFFU));
  const auto sign = hn::ShiftRight<16>(hn::Xor(bits, magnitude));
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1U));
  // Subtracts the difference of the exponent biases, 112 << 23, and adds half a unit less one, or half a unit if odd.
  const auto normal = hn::ShiftRight<13>(hn::Add(hn::Add(magnitude, hn::Set(du, 0xC8000FFFU)), odd));
  const auto aligned = hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5F));
  const auto subnormal = hn::Sub(hn::BitCast(du, aligned), hn::Set(du, 0x3F000000U));
  const auto is_normal = hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, 0x387FFFFF));
  const auto half = hn::IfThenElse(hn::RebindMask(du, is_normal), normal, subnormal);
  return hn::DemoteTo(d16, hn::BitCast(di, hn::Or(half, sign)));
#endif
}

/// FP16 values as floats.
template <class D>
HWY_INLINE hn::Vec<D> from_half(D d, const uint16_t* numbers) {
  const hn::Rebind<hwy::float16_t, D> dh;
  return hn::PromoteTo(d, hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(numbers)));
}

}  // namespace kvq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
