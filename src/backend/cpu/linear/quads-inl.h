// Sums of products of bytes in fours, exact in 32 bits, as each target has them.
#if defined(KVQ_LINEAR_QUADS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KVQ_LINEAR_QUADS_INL_H
#undef KVQ_LINEAR_QUADS_INL_H
#else
#define KVQ_LINEAR_QUADS_INL_H
#endif

#include "backend/cpu/linear/kernels.h"
#include "weights/codebook.h"

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using ByteTag = hn::ScalableTag<uint8_t>;
using ByteVector = hn::Vec<ByteTag>;
using SumTag = hn::Repartition<int32_t, ByteTag>;
using PairTag = hn::Repartition<int16_t, ByteTag>;

/// Levels of four columns of a tile, and their vectors.
inline constexpr int32_t kQuadBytes = 4 * weights::kTileRows;
inline constexpr int32_t kQuadVectors = kQuadBytes / static_cast<int32_t>(hn::MaxLanes(ByteTag()));

/// Added to levels where an instruction multiplies unsigned bytes by signed ones; sums get it times the activations'
/// sum.
#if defined(KVQ_DOT_PRODUCTS) && HWY_ARCH_X86
inline constexpr int32_t kLevelBias = weights::kZeroPoint;
#else
inline constexpr int32_t kLevelBias = 0;
#endif

/// Lane i: sum plus the products of bytes 4i to 4i + 3 of levels + kLevelBias, and activations, −127 to 127. Two
/// products with levels of −127 to 127 fit 16 bits.
HWY_INLINE hn::Vec<SumTag> add_products(ByteVector levels, ByteVector x, hn::Vec<SumTag> sum) {
#if defined(KVQ_DOT_PRODUCTS) && HWY_ARCH_X86
  return hn::Vec<SumTag>{_mm256_dpbusd_avx_epi32(sum.raw, levels.raw, x.raw)};
#elif HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4
  // Unsigned bytes meet signed ones: activations take the signs of the levels.
#if HWY_TARGET == HWY_AVX3
  const auto magnitudes = _mm512_abs_epi8(levels.raw);
  const auto with_signs = _mm512_mask_sub_epi8(x.raw, _mm512_movepi8_mask(levels.raw), _mm512_setzero_si512(), x.raw);
  const hn::Vec<PairTag> products{_mm512_maddubs_epi16(magnitudes, with_signs)};
#elif HWY_TARGET == HWY_AVX2
  const hn::Vec<PairTag> products{
      _mm256_maddubs_epi16(_mm256_abs_epi8(levels.raw), _mm256_sign_epi8(x.raw, levels.raw))};
#else
  const hn::Vec<PairTag> products{_mm_maddubs_epi16(_mm_abs_epi8(levels.raw), _mm_sign_epi8(x.raw, levels.raw))};
#endif
  auto unused = hn::Zero(SumTag());  // other instruction sets keep sums of other products here
  return hn::ReorderWidenMulAccumulate(SumTag(), products, hn::Set(PairTag(), int16_t{1}), sum, unused);
#elif defined(KVQ_DOT_PRODUCTS)
  return hn::Vec<SumTag>(vdotq_s32(sum.raw, vreinterpretq_s8_u8(levels.raw), vreinterpretq_s8_u8(x.raw)));
#elif HWY_TARGET == HWY_NEON && HWY_ARCH_ARM_A64
  const int8x16_t a = vreinterpretq_s8_u8(levels.raw);
  const int8x16_t b = vreinterpretq_s8_u8(x.raw);
  const int16x8_t products = vpaddq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)), vmull_high_s8(a, b));
  return hn::Vec<SumTag>(vpadalq_s16(sum.raw, products));
#else
  const PairTag pairs;
  const auto even = [pairs](ByteVector bytes)
                        HWY_ATTR { return hn::ShiftRight<8>(hn::ShiftLeft<8>(hn::BitCast(pairs, bytes))); };
  const auto odd = [pairs](ByteVector bytes) HWY_ATTR { return hn::ShiftRight<8>(hn::BitCast(pairs, bytes)); };
  const auto products = hn::BitCast(SumTag(), hn::Add(hn::Mul(even(levels), even(x)), hn::Mul(odd(levels), odd(x))));
  return hn::Add(sum, hn::Add(hn::ShiftRight<16>(hn::ShiftLeft<16>(products)), hn::ShiftRight<16>(products)));
#endif
}

}  // namespace kvq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
