// Integer pages multiplied as they are: int8 dot products of codes with fixed-point queries and probabilities.
//
// A page's scales fold into the other operand, which is then rounded to fixed point with one step per row and page (or
// group): 16 bits in two int8 passes for 8-bit codes, 8 bits in one pass for smaller ones, whose own rounding is
// coarser. Codes are taken relative to the middle of their range, so that the rounding error of the operand meets
// small numbers: with f = δ·i + ε, Σ f·code + Σ x·min = δ·Σ i·code + Σ x·(min + mid·scale) − mid·δ·Σ i + Σ ε·(code − mid),
// and the last sum is what is neglected.
#include "backend/cpu/tables.h"
#include "formats/integer/integer.h"

#include <hwy/base.h>
#include <immintrin.h>

// Only the functions below may use these instructions; inline functions of headers stay portable.
HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx2,fma,f16c")

namespace kvq::cpu {
namespace {

template <int kBits>
inline constexpr float kMiddle = static_cast<float>((1 << kBits) - 1) / 2.0F;

/// 8-bit codes meet 16-bit operands as a high and a low byte.
template <int kBits>
inline constexpr bool kTwoPasses = kBits == 8;

/// The largest fixed-point integer: the high byte of two stays within seven bits after rounding.
template <int kBits, bool kSigned>
inline constexpr float kTop = kTwoPasses<kBits> ? 32639.0F : (kSigned ? 127.0F : 255.0F);

/// Bytes of up to four rows, kRowWords words each, in the order in which words hold codes.
template <int kBits, int kRowWords>
struct FixedPoint {
  alignas(64) int32_t low[kBlockRows][kRowWords];
  alignas(64) int32_t high[kTwoPasses<kBits> ? kBlockRows : 1][kRowWords];
};

/// Adding 1.5 · 2^23 leaves the nearest integer in the low bits of a float.
inline __m512i round_to_low_bits(__m512 value, __m512 factor) {
  return _mm512_castps_si512(_mm512_fmadd_ps(value, factor, _mm512_set1_ps(12582912.0F)));
}

/// The low bytes of 32 rounded integers.
inline __m256i low_bytes(__m512i first, __m512i second) {
  const __m512i low_of_each = _mm512_set_epi64(
      0, 0, 0, 0, 0x7C7874706C686460LL, 0x5C5854504C484440LL, 0x3C3834302C282420LL, 0x1C1814100C080400LL);
  return _mm512_castsi512_si256(_mm512_permutex2var_epi8(first, low_of_each, second));
}

/// What the high byte of a two-pass integer is taken from: low bytes are signed, so the high one rounds.
inline __m512i upper_byte(__m512i rounded) {
  return _mm512_srli_epi32(_mm512_add_epi32(rounded, _mm512_set1_epi32(128)), 8);
}

/// Lane r of the result reduces the vector of row r. Rows beyond the block's are zero.
template <int kRows>
inline __m128 sum_rows(const __m512 (&rows)[kRows]) {
  const __m512 zero = _mm512_setzero_ps();
  const __m512 a = rows[0];
  const __m512 b = kRows > 1 ? rows[kRows > 1 ? 1 : 0] : zero;
  const __m512 c = kRows > 2 ? rows[kRows > 2 ? 2 : 0] : zero;
  const __m512 d = kRows > 2 ? rows[kRows > 2 ? 3 : 0] : zero;
  const __m512d ab = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
  const __m512d cd = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d)));
  const __m512 abcd = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)),
                                    _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(abcd), _mm512_extractf32x8_ps(abcd, 1));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

template <int kRows>
inline __m128 max_rows(const __m512 (&rows)[kRows]) {
  const __m512 zero = _mm512_setzero_ps();
  const __m512 a = rows[0];
  const __m512 b = kRows > 1 ? rows[kRows > 1 ? 1 : 0] : zero;
  const __m512 c = kRows > 2 ? rows[kRows > 2 ? 2 : 0] : zero;
  const __m512 d = kRows > 2 ? rows[kRows > 2 ? 3 : 0] : zero;
  const __m512d ab = _mm512_castps_pd(_mm512_max_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
  const __m512d cd = _mm512_castps_pd(_mm512_max_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d)));
  const __m512 abcd = _mm512_max_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)),
                                    _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));
  const __m256 half = _mm256_max_ps(_mm512_castps512_ps256(abcd), _mm512_extractf32x8_ps(abcd, 1));
  return _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

/// Words of a key operand: whole vectors, so that the padding of a plane's last block is covered.
constexpr int kKeyWords = kMaxHeadDim / 4;

/// Queries of up to four rows folded with one key page's scales: q · scale ≈ step · integer.
template <int kBits>
struct KeyOperand {
  FixedPoint<kBits, kKeyWords> integers;
  alignas(16) float step[kBlockRows];
  alignas(16) float bias[kBlockRows];
};

/// First pass over 16 channels: products with the scale, their largest magnitude, Σ q · (min + mid · scale).
template <int kBits, int kRows>
inline void fold_channels(const float* q, int32_t head_dim, int32_t channel, __mmask16 lanes, const uint16_t* scales,
                          const uint16_t* minima, float (&folded)[kRows][kMaxHeadDim], __m512 (&largest)[kRows],
                          __m512 (&bias)[kRows]) {
  const __m512 scale = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes, scales + channel));
  const __m512 minimum = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes, minima + channel));
  const __m512 center = _mm512_fmadd_ps(_mm512_set1_ps(kMiddle<kBits>), scale, minimum);
  constexpr int kAbsoluteMaximum = 0x0B;
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    const __m512 value = _mm512_maskz_loadu_ps(lanes, q + r * head_dim + channel);
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
  for (int32_t channel = 0; channel < padded; channel += 16) {
    const int32_t left = head_dim - channel;
    const auto lanes = static_cast<__mmask16>(left >= 16 ? 0xFFFFU : (left == 8 ? 0x00FFU : 0U));
    fold_channels<kBits, kRows>(q, head_dim, channel, lanes, scales, minima, folded, largest, bias);
  }
  const __m128 maxima = max_rows<kRows>(largest);
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
  const __m128 correction = _mm_mul_ps(_mm_mul_ps(step, _mm_set1_ps(kMiddle<kBits>)), sum_rows<kRows>(sums));
  _mm_store_ps(out.step, step);
  _mm_store_ps(out.bias, _mm_sub_ps(sum_rows<kRows>(bias), correction));
}

/// Sixteen words of a page side; codes<f>() are the bytes of field f.
template <int kBits>
struct CodeWords {
  __m512i low;
  __m512i high;  // 3 bits only, shifted so that bit f of each byte belongs to field f

  inline void load(const integer::Layout& layout, const SideData& side, int32_t block, int32_t lane) {
    const int32_t lanes = layout.low_plane().lanes;
    const auto offset = sizeof(uint32_t) * static_cast<size_t>(block * lanes + lane);
    low = _mm512_loadu_si512(side.data + offset);
    prefetch(side.later + offset);
    if constexpr (kBits == 3) {
      const size_t high_offset = layout.high_offset() + sizeof(uint32_t) * static_cast<size_t>(block / 2 * lanes + lane);
      high = _mm512_loadu_si512(side.data + high_offset);
      if (block % 2 != 0) {
        high = _mm512_srli_epi32(high, 4);
      } else {
        prefetch(side.later + high_offset);
      }
    }
  }

  template <int kField>
  inline __m512i codes() const {
    if constexpr (kBits == 8) return low;
    if constexpr (kBits == 4) return _mm512_and_si512(_mm512_srli_epi32(low, 4 * kField), _mm512_set1_epi8(15));
    const __m512i two = _mm512_and_si512(_mm512_srli_epi32(low, 2 * kField), _mm512_set1_epi8(3));
    if constexpr (kBits == 2) return two;
    constexpr unsigned kLeft = kField < 2 ? 2U - kField : 0U;
    constexpr unsigned kRight = kField < 2 ? 0U : kField - 2U;
    const __m512i placed = kField < 2 ? _mm512_slli_epi32(high, kLeft) : _mm512_srli_epi32(high, kRight);
    return _mm512_or_si512(two, _mm512_and_si512(placed, _mm512_set1_epi8(4)));
  }
};

template <int kBits>
inline constexpr int kFields = kBits == 8 ? 1 : (kBits == 4 ? 2 : 4);

/// Integer accumulators of kRows rows and kVectors vectors of lanes.
template <int kBits, int kRows, int kVectors>
struct Accumulators {
  __m512i low[kRows][kVectors];
  __m512i high[kTwoPasses<kBits> ? kRows : 1][kVectors];

  inline void clear() {
    for (auto& row : low) {
      for (auto& each : row) each = _mm512_setzero_si512();
    }
    for (auto& row : high) {
      for (auto& each : row) each = _mm512_setzero_si512();
    }
  }

  /// Unsigned operand bytes meet codes that fit seven bits; signed ones meet unsigned codes.
  template <bool kSigned>
  static inline __m512i dot(__m512i sum, __m512i codes, int32_t word) {
    const __m512i operand = _mm512_set1_epi32(word);
    return kSigned ? _mm512_dpbusd_epi32(sum, codes, operand) : _mm512_dpbusd_epi32(sum, operand, codes);
  }

  template <bool kSigned, int kRowWords, int kField = 0>
  inline void add_block(const CodeWords<kBits> (&words)[kVectors], const FixedPoint<kBits, kRowWords>& operand,
                        int32_t block) {
    if constexpr (kField < kFields<kBits>) {
      const int32_t at = block * kFields<kBits> + kField;
      __m512i codes[kVectors];
      HWY_UNROLL(8)
      for (int a = 0; a < kVectors; ++a) codes[a] = words[a].template codes<kField>();
      HWY_UNROLL(8)
      for (int r = 0; r < kRows; ++r) {
        HWY_UNROLL(8)
        for (int a = 0; a < kVectors; ++a) low[r][a] = dot<kSigned>(low[r][a], codes[a], operand.low[r][at]);
        if constexpr (kTwoPasses<kBits>) {
          HWY_UNROLL(8)
          for (int a = 0; a < kVectors; ++a) high[r][a] = dot<true>(high[r][a], codes[a], operand.high[r][at]);
        }
      }
      add_block<kSigned, kRowWords, kField + 1>(words, operand, block);
    }
  }

  inline __m512 value(int r, int a) const {
    if constexpr (kTwoPasses<kBits>) {
      // The sums of both passes are exact, their combination would not fit 32 bits.
      return _mm512_fmadd_ps(_mm512_cvtepi32_ps(high[r][a]), _mm512_set1_ps(256.0F), _mm512_cvtepi32_ps(low[r][a]));
    } else {
      return _mm512_cvtepi32_ps(low[r][a]);
    }
  }
};

[[gnu::always_inline]] inline void prefetch_scales(const integer::Layout& layout, const SideData& side) {
  for (size_t i = layout.scale_offset(); i < layout.bytes(); i += 64) prefetch(side.later + i);
}

template <int kBits, int kRows>
inline void keys_rows(int32_t head_dim, const SideData& keys, const float* q, float* scores) {
  const integer::Layout layout{Side::kKeys, kBits, head_dim, 0};
  const auto* scales = reinterpret_cast<const uint16_t*>(keys.data + layout.scale_offset());
  const auto* minima = reinterpret_cast<const uint16_t*>(keys.data + layout.min_offset());
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

/// What the value pages of a run share over all channel groups: bounds on p · scale, one factor each.
struct ValueBounds {
  alignas(16) float probability[kTilePages][kBlockRows];
  alignas(16) float scale[kTilePages][kMaxHeadDim / 32];
};

template <int kRows>
inline void bound_probabilities(const float* p, int32_t pages, ValueBounds& out) {
  for (int32_t page = 0; page < pages; ++page) {
    __m512 largest[kRows];
    HWY_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
      const float* row = p + r * kTileSlots + page * kPageSlots;
      largest[r] = _mm512_max_ps(_mm512_loadu_ps(row), _mm512_loadu_ps(row + 16));
    }
    _mm_store_ps(out.probability[page], max_rows<kRows>(largest));
  }
}

inline void bound_scales(const integer::Layout& layout, const SideData& side, float* out) {
  const auto* scales = reinterpret_cast<const uint16_t*>(side.data + layout.scale_offset());
  for (int32_t group = 0; group < layout.value_groups(); group += 4) {
    __m512 largest[4];
    for (int32_t i = 0; i < 4; ++i) {
      const int32_t at = group + i < layout.value_groups() ? group + i : group;
      const __m512i halves = _mm512_loadu_si512(scales + at * kPageSlots);
      largest[i] = _mm512_max_ps(_mm512_cvtph_ps(_mm512_castsi512_si256(halves)),
                                 _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1)));
    }
    _mm_storeu_ps(out + group, max_rows<4>(largest));
  }
}

/// Probabilities of up to four rows folded with the scales of one page and group: eight words a row.
template <int kBits>
struct ValueOperand {
  FixedPoint<kBits, kPageSlots / 4> integers;
  alignas(16) float step[kBlockRows];
};

/// Sums over a run for one group of channels: Σ p · (min + mid · scale) and Σ step · integer, in lanes.
template <int kRows>
struct ValueBias {
  __m512 center[kRows];
  __m256 integers[kRows];

  inline void clear() {
    for (auto& each : center) each = _mm512_setzero_ps();
    for (auto& each : integers) each = _mm256_setzero_ps();
  }
};

/// Round 32 products of one row, store the bytes, and return sums of four neighbours a lane.
template <int kBits>
inline __m256 round_probabilities(__m512 first, __m512 second, __m512 factor, int r, ValueOperand<kBits>& out) {
  const __m512i a = round_to_low_bits(first, factor);
  const __m512i b = round_to_low_bits(second, factor);
  const __m256i ones = _mm256_set1_epi8(1);
  const __m256i zero = _mm256_setzero_si256();
  const __m256i low = low_bytes(a, b);
  _mm256_store_si256(reinterpret_cast<__m256i*>(out.integers.low[r]), low);
  if constexpr (!kTwoPasses<kBits>) return _mm256_cvtepi32_ps(_mm256_dpbusd_epi32(zero, low, ones));
  const __m256i high = low_bytes(upper_byte(a), upper_byte(b));
  _mm256_store_si256(reinterpret_cast<__m256i*>(out.integers.high[kTwoPasses<kBits> ? r : 0]), high);
  const __m256i high_sum = _mm256_slli_epi32(_mm256_dpbusd_epi32(zero, ones, high), 8);
  return _mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_dpbusd_epi32(zero, ones, low), high_sum));
}

inline __m512 load_halves(const uint16_t* halves) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves)));
}

template <int kBits, int kRows>
inline void fold_probabilities(const float* p, const uint16_t* scales, const uint16_t* minima, __m128 bound,
                               ValueOperand<kBits>& out, ValueBias<kRows>& bias) {
  alignas(16) float factor[kBlockRows];
  _mm_store_ps(factor, _mm_div_ps(_mm_set1_ps(kTop<kBits, false>), _mm_max_ps(bound, _mm_set1_ps(1e-30F))));
  _mm_store_ps(out.step, _mm_mul_ps(bound, _mm_set1_ps(1.0F / kTop<kBits, false>)));
  const __m512 middle = _mm512_set1_ps(kMiddle<kBits>);
  const __m512 scale[2] = {load_halves(scales), load_halves(scales + 16)};
  const __m512 center[2] = {_mm512_fmadd_ps(middle, scale[0], load_halves(minima)),
                            _mm512_fmadd_ps(middle, scale[1], load_halves(minima + 16))};
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    const __m512 first = _mm512_loadu_ps(p + r * kTileSlots);
    const __m512 second = _mm512_loadu_ps(p + r * kTileSlots + 16);
    bias.center[r] = _mm512_fmadd_ps(first, center[0], _mm512_fmadd_ps(second, center[1], bias.center[r]));
    const __m256 sums = round_probabilities<kBits>(_mm512_mul_ps(first, scale[0]), _mm512_mul_ps(second, scale[1]),
                                                   _mm512_set1_ps(factor[r]), r, out);
    bias.integers[r] = _mm256_fmadd_ps(_mm256_set1_ps(out.step[r]), sums, bias.integers[r]);
  }
}

/// The bias of every row at the end of a run.
template <int kBits, int kRows>
inline __m128 total_bias(const ValueBias<kRows>& bias) {
  __m512 rows[kRows];
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    const __m512 correction = _mm512_zextps256_ps512(bias.integers[r]);
    rows[r] = _mm512_fnmadd_ps(_mm512_set1_ps(kMiddle<kBits>), correction, bias.center[r]);
  }
  return sum_rows<kRows>(rows);
}

/// All pages of a run for `kVectors` vectors of channels; folds on the way for the first vectors of a group.
template <int kBits, int kRows, int kVectors>
inline void values_chunk(const integer::Layout& layout, const SideData* values, int32_t pages, int32_t channel,
                         const ValueOperand<kBits>* operands, __m512 (&out)[kRows][kVectors]) {
  const int32_t blocks = layout.low_plane().blocks();
  for (int32_t page = 0; page < pages; ++page) {
    Accumulators<kBits, kRows, kVectors> sums;
    sums.clear();
    for (int32_t block = 0; block < blocks; ++block) {
      CodeWords<kBits> words[kVectors];
      HWY_UNROLL(8)
      for (int a = 0; a < kVectors; ++a) words[a].load(layout, values[page], block, channel + 16 * a);
      sums.template add_block<kTwoPasses<kBits>>(words, operands[page].integers, block);
    }
    HWY_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
      const __m512 step = _mm512_set1_ps(operands[page].step[r]);
      HWY_UNROLL(8)
      for (int a = 0; a < kVectors; ++a) out[r][a] = _mm512_fmadd_ps(sums.value(r, a), step, out[r][a]);
    }
  }
}

template <int kBits, int kRows, int kVectors>
inline void values_channels(const integer::Layout& layout, const SideData* values, int32_t pages, int32_t channel,
                            const ValueOperand<kBits>* operands, const float (&bias)[kBlockRows], float* out) {
  const int32_t width = layout.low_plane().lanes;
  __m512 sums[kRows][kVectors];
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(8)
    for (int a = 0; a < kVectors; ++a) {
      const __m512 before = _mm512_loadu_ps(out + r * width + channel + 16 * a);
      sums[r][a] = _mm512_add_ps(before, _mm512_set1_ps(bias[r]));
    }
  }
  values_chunk<kBits, kRows, kVectors>(layout, values, pages, channel, operands, sums);
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(8)
    for (int a = 0; a < kVectors; ++a) _mm512_storeu_ps(out + r * width + channel + 16 * a, sums[r][a]);
  }
}

template <int kBits, int kRows>
inline void values_rows(const SideShape& shape, const SideData* values, int32_t pages, const float* p, float* out) {
  const integer::Layout layout{Side::kValues, kBits, shape.head_dim, shape.group};
  const int32_t width = layout.low_plane().lanes;
  ValueBounds bounds;
  bound_probabilities<kRows>(p, pages, bounds);
  for (int32_t page = 0; page < pages; ++page) {
    prefetch_scales(layout, values[page]);
    bound_scales(layout, values[page], bounds.scale[page]);
  }
  for (int32_t group = 0; group < layout.value_groups(); ++group) {
    ValueOperand<kBits> operands[kTilePages];
    ValueBias<kRows> sums;
    sums.clear();
    for (int32_t page = 0; page < pages; ++page) {
      const std::byte* data = values[page].data;
      const auto* scales = reinterpret_cast<const uint16_t*>(data + layout.scale_offset()) + group * kPageSlots;
      const auto* minima = reinterpret_cast<const uint16_t*>(data + layout.min_offset()) + group * kPageSlots;
      const __m128 bound =
          _mm_mul_ps(_mm_load_ps(bounds.probability[page]), _mm_set1_ps(bounds.scale[page][group]));
      fold_probabilities<kBits, kRows>(p + page * kPageSlots, scales, minima, bound, operands[page], sums);
    }
    alignas(16) float bias[kBlockRows];
    _mm_store_ps(bias, total_bias<kBits, kRows>(sums));
    const int32_t end = (group + 1) * shape.group < width ? (group + 1) * shape.group : width;
    int32_t channel = group * shape.group;
    for (; channel + 32 <= end; channel += 32) {
      values_channels<kBits, kRows, 2>(layout, values, pages, channel, operands, bias, out);
    }
    if (channel < end) values_channels<kBits, kRows, 1>(layout, values, pages, channel, operands, bias, out);
  }
}

template <int kBits>
void vnni_keys(const SideShape& shape, const SideData& keys, int32_t rows, const float* q, float* scores) {
  if (rows == 1) {
    keys_rows<kBits, 1>(shape.head_dim, keys, q, scores);
  } else if (rows == 2) {
    keys_rows<kBits, 2>(shape.head_dim, keys, q, scores);
  } else {
    keys_rows<kBits, 4>(shape.head_dim, keys, q, scores);
  }
}

template <int kBits>
void vnni_values(const SideShape& shape, const SideData* values, int32_t pages, int32_t rows, const float* p,
                 float* out) {
  if (rows == 1) {
    values_rows<kBits, 1>(shape, values, pages, p, out);
  } else if (rows == 2) {
    values_rows<kBits, 2>(shape, values, pages, p, out);
  } else {
    values_rows<kBits, 4>(shape, values, pages, p, out);
  }
}

}  // namespace
}  // namespace kvq::cpu

HWY_POP_ATTRIBUTES

namespace kvq::cpu {
namespace {

KernelTable make_table() {
  KernelTable table = avx512_table();
  table.name = "avx512vnni";
  table.integer_keys[2] = vnni_keys<2>;
  table.integer_keys[3] = vnni_keys<3>;
  table.integer_keys[4] = vnni_keys<4>;
  table.integer_keys[8] = vnni_keys<8>;
  table.integer_values[2] = vnni_values<2>;
  table.integer_values[3] = vnni_values<3>;
  table.integer_values[4] = vnni_values<4>;
  table.integer_values[8] = vnni_values<8>;
  return table;
}

}  // namespace

const KernelTable& avx512vnni_table() {
  static const KernelTable kTable = make_table();
  return kTable;
}

}  // namespace kvq::cpu
