// Products of bytes and their sums, as each target has them.
#if defined(KVQ_BYTE_PRODUCTS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KVQ_BYTE_PRODUCTS_INL_H
#undef KVQ_BYTE_PRODUCTS_INL_H
#else
#define KVQ_BYTE_PRODUCTS_INL_H
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using SumTag = hn::ScalableTag<int32_t>;
using PairTag = hn::Repartition<int16_t, SumTag>;
using ByteTag = hn::Repartition<uint8_t, SumTag>;
using SumVector = hn::Vec<SumTag>;
using PairVector = hn::Vec<PairTag>;
using ByteVector = hn::Vec<ByteTag>;

#if defined(KVQ_DOT_PRODUCTS) && HWY_ARCH_X86

/// Lane i: sum plus the products of bytes 4i to 4i + 3, unsigned ones of `a` and signed ones of `b`.
HWY_INLINE SumVector add_mixed_products(ByteVector a, ByteVector b, SumVector sum) {
  return SumVector{_mm256_dpbusd_avx_epi32(sum.raw, a.raw, b.raw)};
}

#elif defined(KVQ_DOT_PRODUCTS)

/// Lane i: sum plus the products of bytes 4i to 4i + 3, all signed.
HWY_INLINE SumVector add_signed_products(ByteVector a, ByteVector b, SumVector sum) {
  return SumVector{vdotq_s32(sum.raw, vreinterpretq_s8_u8(a.raw), vreinterpretq_s8_u8(b.raw))};
}

/// The same for unsigned ones.
HWY_INLINE SumVector add_unsigned_products(ByteVector a, ByteVector b, SumVector sum) {
  return SumVector{vreinterpretq_s32_u32(vdotq_u32(vreinterpretq_u32_s32(sum.raw), a.raw, b.raw))};
}

#endif

/// Lane i: sum plus the products of words 2i and 2i + 1. Where they come in two vectors, `other` gets one of them.
HWY_INLINE void add_word_products(PairVector a, PairVector b, SumVector& sum, [[maybe_unused]] SumVector& other) {
#if defined(KVQ_DOT_PRODUCTS) && HWY_ARCH_X86
  sum.raw = _mm256_dpwssd_avx_epi32(sum.raw, a.raw, b.raw);
#else
  sum = hn::ReorderWidenMulAccumulate(SumTag(), a, b, sum, other);
#endif
}

/// Lane i: sum plus words 2i and 2i + 1.
HWY_INLINE SumVector add_neighbours(PairVector words, SumVector sum) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4
  SumVector unused = hn::Zero(SumTag());
  add_word_products(words, hn::Set(PairTag(), int16_t{1}), sum, unused);
  return sum;
#elif HWY_TARGET == HWY_NEON && HWY_ARCH_ARM_A64
  return SumVector(vpadalq_s16(sum.raw, words.raw));
#else
  const auto both = hn::BitCast(SumTag(), words);
  return hn::Add(sum, hn::Add(hn::ShiftRight<16>(hn::ShiftLeft<16>(both)), hn::ShiftRight<16>(both)));
#endif
}

/// Signed bytes 2i of lanes of 16 bits, and bytes 2i + 1.
HWY_INLINE PairVector even_bytes(ByteVector bytes) {
  return hn::ShiftRight<8>(hn::ShiftLeft<8>(hn::BitCast(PairTag(), bytes)));
}
HWY_INLINE PairVector odd_bytes(ByteVector bytes) { return hn::ShiftRight<8>(hn::BitCast(PairTag(), bytes)); }

/// Lane i: sum of the products of bytes 2i and 2i + 1, unsigned ones of `a` and signed ones of `b`, which must fit.
HWY_INLINE PairVector mixed_pair_products(ByteVector a, ByteVector b) {
#if HWY_TARGET == HWY_AVX3
  return PairVector{_mm512_maddubs_epi16(a.raw, b.raw)};
#elif HWY_TARGET == HWY_AVX2
  return PairVector{_mm256_maddubs_epi16(a.raw, b.raw)};
#elif HWY_TARGET == HWY_SSE4
  return PairVector{_mm_maddubs_epi16(a.raw, b.raw)};
#else
  const hn::RebindToUnsigned<PairTag> du;
  const auto unsigned_even = hn::BitCast(PairTag(), hn::And(hn::BitCast(du, a), hn::Set(du, uint16_t{255})));
  const auto unsigned_odd = hn::BitCast(PairTag(), hn::ShiftRight<8>(hn::BitCast(du, a)));
  return hn::Add(hn::Mul(unsigned_even, even_bytes(b)), hn::Mul(unsigned_odd, odd_bytes(b)));
#endif
}

/// The same for signed bytes of both, of which those of `a` are not -128.
HWY_INLINE PairVector signed_pair_products(ByteVector a, ByteVector b) {
#if HWY_TARGET == HWY_AVX3
  const auto with_signs = _mm512_mask_sub_epi8(b.raw, _mm512_movepi8_mask(a.raw), _mm512_setzero_si512(), b.raw);
  return mixed_pair_products(ByteVector{_mm512_abs_epi8(a.raw)}, ByteVector{with_signs});
#elif HWY_TARGET == HWY_AVX2
  return mixed_pair_products(ByteVector{_mm256_abs_epi8(a.raw)}, ByteVector{_mm256_sign_epi8(b.raw, a.raw)});
#elif HWY_TARGET == HWY_SSE4
  return mixed_pair_products(ByteVector{_mm_abs_epi8(a.raw)}, ByteVector{_mm_sign_epi8(b.raw, a.raw)});
#elif HWY_TARGET == HWY_NEON && HWY_ARCH_ARM_A64
  const int8x16_t x = vreinterpretq_s8_u8(a.raw);
  const int8x16_t y = vreinterpretq_s8_u8(b.raw);
  return PairVector(vpaddq_s16(vmull_s8(vget_low_s8(x), vget_low_s8(y)), vmull_high_s8(x, y)));
#else
  return hn::Add(hn::Mul(even_bytes(a), even_bytes(b)), hn::Mul(odd_bytes(a), odd_bytes(b)));
#endif
}

}  // namespace kvq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
