// Scores of integer key pages with int8 dot products.
#include "backend/cpu/attend/codes_avx512vnni.h"
#include "backend/cpu/dispatch/avx512vnni.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx2,fma,f16c")

namespace kvq::cpu {
namespace {

/// Words of a key operand: whole vectors, to cover the padding of a plane's last block.
constexpr int kKeyWords = kMaxHeadDim / 4;

/// Queries of up to four rows folded with one key page's scales: q · scale ≈ step · integer.
template <int kBits>
struct KeyOperand {
  FixedPoint<kBits, kKeyWords> integers;
  alignas(16) float step[kBlockRows];
  alignas(16) float bias[kBlockRows];
};

/// Sixteen numbers, or those selected by `lanes`. Whole vectors are loaded without a mask, which costs time.
template <bool kMasked>
inline __m512 load_floats(const float* from, __mmask16 lanes) {
  return kMasked ? _mm512_maskz_loadu_ps(lanes, from) : _mm512_loadu_ps(from);
}
template <bool kMasked>
inline __m512 load_float16(const uint16_t* from, __mmask16 lanes) {
  return _mm512_cvtph_ps(kMasked ? _mm256_maskz_loadu_epi16(lanes, from)
                                 : _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

/// First pass over 16 channels: products with the scale, their largest magnitude, Σ q · (min + mid · scale).
template <int kBits, int kRows, bool kMasked>
inline void fold_channels(const float* q, int32_t head_dim, int32_t channel, __mmask16 lanes, const uint16_t* scales,
                          const uint16_t* minima, float (&folded)[kRows][kMaxHeadDim], __m512 (&largest)[kRows],
                          __m512 (&bias)[kRows]) {
  const __m512 scale = load_float16<kMasked>(scales + channel, lanes);
  const __m512 minimum = load_float16<kMasked>(minima + channel, lanes);
  const __m512 center = _mm512_fmadd_ps(_mm512_set1_ps(kMiddle<kBits>), scale, minimum);
  constexpr int kAbsoluteMaximum = 0x0B;
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    const __m512 value = load_floats<kMasked>(q + r * head_dim + channel, lanes);
    const __m512 product = _mm512_mul_ps(value, scale);
    _mm512_store_ps(folded[r] + channel, product);
    largest[r] = _mm512_range_ps(largest[r], product, kAbsoluteMaximum);
    bias[r] = _mm512_fmadd_ps(value, center, bias[r]);
  }
}

/// Second pass over 64 channels of one row: rounds, stores the bytes, returns sums of four neighbours a lane.
template <int kBits>
inline __m512 round_queries(const float* folded, __m512 factor, int r, int32_t channel, KeyOperand<kBits>& out) {
  __m512i rounded[4];
  HWY_UNROLL(8)
  for (int i = 0; i < 4; ++i) rounded[i] = round_to_low_bits(_mm512_load_ps(folded + 16 * i), factor);
  const __m512i ones = _mm512_set1_epi8(1);
  const __m512i low = _mm512_inserti64x4(_mm512_castsi256_si512(low_bytes(rounded[0], rounded[1])),
                                         low_bytes(rounded[2], rounded[3]), 1);
  _mm512_store_si512(out.integers.low[r] + channel / 4, low);
  __m512i sum = _mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, low);
  if constexpr (kTwoPasses<kBits>) {
    HWY_UNROLL(8)
    for (auto& each : rounded) each = upper_byte(each);
    const __m512i high = _mm512_inserti64x4(_mm512_castsi256_si512(low_bytes(rounded[0], rounded[1])),
                                            low_bytes(rounded[2], rounded[3]), 1);
    _mm512_store_si512(out.integers.high[r] + channel / 4, high);
    const __m512i high_sum = _mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, high);
    sum = _mm512_add_epi32(sum, _mm512_slli_epi32(high_sum, 8));
  }
  return _mm512_cvtepi32_ps(sum);
}

template <int kBits, int kRows>
inline void fold_queries(const float* q, int32_t head_dim, const uint16_t* scales, const uint16_t* minima,
                         KeyOperand<kBits>& out) {
  alignas(64) float folded[kRows][kMaxHeadDim];
  __m512 largest[kRows];
  __m512 bias[kRows];
  __m512 sums[kRows];
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) largest[r] = bias[r] = sums[r] = _mm512_setzero_ps();
  const int32_t padded = (head_dim + 63) / 64 * 64;
  int32_t first = 0;
  for (; first + 16 <= head_dim; first += 16) {
    fold_channels<kBits, kRows, false>(q, head_dim, first, 0, scales, minima, folded, largest, bias);
  }
  for (; first < padded; first += 16) {
    const auto lanes = static_cast<__mmask16>(head_dim - first == 8 ? 0x00FFU : 0U);
    fold_channels<kBits, kRows, true>(q, head_dim, first, lanes, scales, minima, folded, largest, bias);
  }
  const __m128 maxima = reduce_rows<Maximum, kRows>(largest);
  const __m128 step = _mm_mul_ps(maxima, _mm_set1_ps(1.0F / kTop<kBits, true>));
  alignas(16) float factor[kBlockRows];
  _mm_store_ps(factor, _mm_div_ps(_mm_set1_ps(kTop<kBits, true>), _mm_max_ps(maxima, _mm_set1_ps(1e-30F))));
  for (int32_t channel = 0; channel < padded; channel += 64) {
    HWY_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
      const __m512 sum = round_queries<kBits>(folded[r] + channel, _mm512_set1_ps(factor[r]), r, channel, out);
      sums[r] = _mm512_add_ps(sums[r], sum);
    }
  }
  const __m128 middle = _mm_mul_ps(step, _mm_set1_ps(kMiddle<kBits>));
  _mm_store_ps(out.step, step);
  _mm_store_ps(out.bias, _mm_fnmadd_ps(middle, reduce_rows<Sum, kRows>(sums), reduce_rows<Sum, kRows>(bias)));
}

template <int kBits, int kRows>
inline void keys_rows(int32_t head_dim, const SideData& keys, const float* q, float* scores) {
  const SideLayout layout{.side = Side::kKeys, .code = CodeType::integer(kBits), .head_dim = head_dim};
  const auto* scales = reinterpret_cast<const uint16_t*>(keys.data + layout.scale_offset());
  const auto* minima = reinterpret_cast<const uint16_t*>(keys.data + layout.minimum_offset());
  prefetch_scales(layout, keys);
  KeyOperand<kBits> operand;
  fold_queries<kBits, kRows>(q, head_dim, scales, minima, operand);
  Accumulators<kBits, kRows, 2> sums;
  sums.clear();
  const int32_t blocks = layout.low_plane().blocks();
  for (int32_t block = 0; block < blocks; ++block) {
    CodeWords<kBits> words[2];
    words[0].load(layout, keys, block, 0);
    words[1].load(layout, keys, block, 16);
    sums.template add_block<true>(words, operand.integers, block);
  }
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    const __m512 step = _mm512_set1_ps(operand.step[r]);
    const __m512 bias = _mm512_set1_ps(operand.bias[r]);
    HWY_UNROLL(8)
    for (int a = 0; a < 2; ++a) {
      _mm512_storeu_ps(scores + r * kTileSlots + 16 * a, _mm512_fmadd_ps(sums.value(r, a), step, bias));
    }
  }
}

template <int kBits, int kRows>
inline void keys_pages(const SideShape& shape, const SideData* keys, int32_t pages, const QueryRows& q, float* scores) {
  for (int32_t page = 0; page < pages; ++page) {
    keys_rows<kBits, kRows>(shape.head_dim, keys[page], q.floats, scores + page * kPageSlots);
  }
}

template <int kBits>
void vnni_keys(const SideShape& shape, const SideData* keys, int32_t pages, int32_t rows, const QueryRows& q,
               float* scores) {
  if (rows == 1) {
    keys_pages<kBits, 1>(shape, keys, pages, q, scores);
  } else if (rows == 2) {
    keys_pages<kBits, 2>(shape, keys, pages, q, scores);
  } else {
    keys_pages<kBits, 4>(shape, keys, pages, q, scores);
  }
}

}  // namespace
}  // namespace kvq::cpu

HWY_POP_ATTRIBUTES

namespace kvq::cpu {

void set_avx512vnni_keys(KernelTable& table) {
  table.plain(CodeType::integer(2)).keys = vnni_keys<2>;
  table.plain(CodeType::integer(3)).keys = vnni_keys<3>;
  table.plain(CodeType::integer(4)).keys = vnni_keys<4>;
  table.plain(CodeType::integer(8)).keys = vnni_keys<8>;
}

}  // namespace kvq::cpu
