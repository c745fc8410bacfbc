// Gains of a page's slots as gain codes.
#if defined(KVQ_APPEND_GAINS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KVQ_APPEND_GAINS_INL_H
#undef KVQ_APPEND_GAINS_INL_H
#else
#define KVQ_APPEND_GAINS_INL_H
#endif

#include "core/float16.h"
#include "formats/gain_shape/gains.h"
#include "formats/gain_shape/layout.h"

#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Same result as gain_shape::gain_code().
template <class D>
HWY_INLINE hn::Vec<hn::RebindToSigned<D>> gain_code(D d, hn::Vec<D> gain, hn::Vec<D> largest) {
  const hn::RebindToSigned<D> di;
  const auto bits = hn::BitCast(di, hn::Div(gain, largest));  // no value is negative
  const auto mantissa = hn::Or(hn::And(bits, hn::Set(di, 0x7FFFFF)), hn::Set(di, 0x3F800000));
  const auto octave = hn::Sub(hn::ShiftRight<23>(bits), hn::Set(di, 127));
  auto code = hn::Add(hn::Mul(octave, hn::Set(di, gain_shape::kGainSteps)), hn::Set(di, gain_shape::kTopGain));
  for (const float threshold : gain_shape::kGainThresholds) {
    const auto below = hn::Gt(hn::BitCast(di, hn::Set(d, threshold)), mantissa);
    code = hn::Add(code, hn::IfThenZeroElse(below, hn::Set(di, 1)));
  }
  return hn::Max(hn::Min(code, hn::Set(di, gain_shape::kTopGain)), hn::Zero(di));
}

/// Writes gains for residuals r with squared norms `norms` and levels u; `products`: ⟨u, r⟩. The gain satisfies ⟨gain ·
/// u, r⟩ = ⟨r, r⟩, so the query a key aligns with keeps its product.
inline void put_gains(const SideLayout& layout, const float* norms, const float* products, std::byte* out) {
  const hn::ScalableTag<float> d;
  const hn::Rebind<uint8_t, decltype(d)> d8;
  const auto lanes = static_cast<int32_t>(hn::Lanes(d));
  HWY_ALIGN_MAX float gains[kPageSlots];
  auto most = hn::Zero(d);
  for (int32_t slot = 0; slot < kPageSlots; slot += lanes) {
    const auto norm = hn::Load(d, norms + slot);
    const auto product = hn::Load(d, products + slot);
    const auto has_gain = hn::And(hn::Gt(product, hn::Zero(d)), hn::Gt(norm, hn::Zero(d)));
    const auto gain = hn::IfThenElseZero(has_gain, hn::Div(norm, product));
    most = hn::Max(most, gain);
    hn::Store(gain, d, gains + slot);
  }
  const uint16_t largest = to_float16(std::min(hn::GetLane(hn::MaxOfLanes(d, most)), kMaxFloat16));
  std::memcpy(out + layout.largest_offset(), &largest, sizeof(largest));
  auto* codes = reinterpret_cast<uint8_t*>(out + layout.gain_offset());
  std::fill(codes, codes + kPageSlots, uint8_t{0});
  const auto unit = hn::Set(d, from_float16(largest));
  for (int32_t slot = 0; largest != 0 && slot < kPageSlots; slot += lanes) {
    hn::StoreU(hn::DemoteTo(d8, gain_code(d, hn::Load(d, gains + slot), unit)), d8, codes + slot);
  }
}

}  // namespace kvq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
