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
HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")

namespace kvq::cpu {
namespace {

constexpr int kMaxWords = kMaxHeadDim / 4 + 8;

template <int kBits>
inline constexpr float kMiddle = static_cast<float>((1 << kBits) - 1) / 2.0F;

/// Fixed-point operand of up to four rows: bytes in the order in which words hold codes.
template <int kBits>
struct FixedPoint {
  static constexpr bool kTwoPasses = kBits == 8;
  alignas(64) int32_t low[kBlockRows][kMaxWords];
  alignas(64) int32_t high[kTwoPasses ? kBlockRows : 1][kMaxWords];
  alignas(16) float step[kBlockRows];
  alignas(16) float bias[kBlockRows];
};

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

/// Fold a page's scales into n floats of each row (n a multiple of 8) and round them to fixed point.
/// x: [kRows, stride]. kSigned: two's complement bytes; otherwise x ≥ 0 and single-pass bytes are unsigned.
template <int kBits, int kRows, bool kSigned>
inline void fold(const float* x, size_t stride, const uint16_t* scales, const uint16_t* minima, int32_t n,
                 FixedPoint<kBits>& out) {
  alignas(64) float folded[kRows][kMaxHeadDim];
  const __m512 middle = _mm512_set1_ps(kMiddle<kBits>);
  __m512 largest[kRows];
  __m512 bias[kRows];
  for (int r = 0; r < kRows; ++r) largest[r] = bias[r] = _mm512_setzero_ps();
  for (int32_t i = 0; i < n; i += 16) {
    const __mmask16 lanes = n - i >= 16 ? 0xFFFF : 0x00FF;
    const __m512 scale = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes, scales + i));
    const __m512 minimum = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes, minima + i));
    const __m512 center = _mm512_fmadd_ps(middle, scale, minimum);
    for (int r = 0; r < kRows; ++r) {
      const __m512 value = _mm512_maskz_loadu_ps(lanes, x + static_cast<size_t>(r) * stride + i);
      const __m512 product = _mm512_mul_ps(value, scale);
      _mm512_store_ps(folded[r] + i, product);
      largest[r] = _mm512_max_ps(largest[r], kSigned ? _mm512_abs_ps(product) : product);
      bias[r] = _mm512_fmadd_ps(value, center, bias[r]);
    }
  }
  // A row of zeros keeps step 0: its integers are 0 because everything is multiplied by a finite number.
  constexpr float kTop = FixedPoint<kBits>::kTwoPasses ? 32639.0F : (kSigned ? 127.0F : 255.0F);
  const __m128 maxima = max_rows<kRows>(largest);
  const __m128 step = _mm_mul_ps(maxima, _mm_set1_ps(1.0F / kTop));
  const __m128 inverse = _mm_div_ps(_mm_set1_ps(kTop), _mm_max_ps(maxima, _mm_set1_ps(1e-30F)));
  alignas(16) float factor[kBlockRows];
  _mm_store_ps(factor, inverse);
  __m512 sums[kRows];
  for (int r = 0; r < kRows; ++r) {
    const __m512 to_steps = _mm512_set1_ps(factor[r]);
    __m512i sum = _mm512_setzero_si512();
    auto* low = reinterpret_cast<int8_t*>(out.low[r]);
    for (int32_t i = 0; i < n; i += 16) {
      const __m512i integer = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_load_ps(folded[r] + i), to_steps));
      sum = _mm512_add_epi32(sum, integer);
      if constexpr (FixedPoint<kBits>::kTwoPasses) {
        const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(integer, _mm512_set1_epi32(128)), 8);
        auto* bytes = reinterpret_cast<int8_t*>(out.high[r]);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes + i), _mm512_cvtepi32_epi8(high));
      }
      _mm_storeu_si128(reinterpret_cast<__m128i*>(low + i), _mm512_cvtepi32_epi8(integer));
    }
    // The last block of a plane may be longer than what it holds; its codes are zero, but bytes must be defined.
    for (int32_t i = (n + 15) / 16 * 16; i < n + 32; i += 16) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(low + i), _mm_setzero_si128());
    }
    sums[r] = _mm512_cvtepi32_ps(sum);
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
    const __m512i placed = kField < 2 ? _mm512_slli_epi32(high, kField < 2 ? 2 - kField : 0)
                                      : _mm512_srli_epi32(high, kField < 2 ? 0 : kField - 2);
    return _mm512_or_si512(two, _mm512_and_si512(placed, _mm512_set1_epi8(4)));
  }
};

template <int kBits>
inline constexpr int kFields = kBits == 8 ? 1 : (kBits == 4 ? 2 : 4);

/// Integer accumulators of kRows rows and kVectors vectors of lanes.
template <int kBits, int kRows, int kVectors>
struct Accumulators {
  __m512i low[kRows][kVectors];
  __m512i high[FixedPoint<kBits>::kTwoPasses ? kRows : 1][kVectors];

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

  template <bool kSigned, int kField = 0>
  inline void add_block(const CodeWords<kBits> (&words)[kVectors], const FixedPoint<kBits>& operand, int32_t block) {
    if constexpr (kField < kFields<kBits>) {
      const int32_t at = block * kFields<kBits> + kField;
      __m512i codes[kVectors];
      for (int a = 0; a < kVectors; ++a) codes[a] = words[a].template codes<kField>();
      for (int r = 0; r < kRows; ++r) {
        for (int a = 0; a < kVectors; ++a) low[r][a] = dot<kSigned>(low[r][a], codes[a], operand.low[r][at]);
        if constexpr (FixedPoint<kBits>::kTwoPasses) {
          for (int a = 0; a < kVectors; ++a) high[r][a] = dot<true>(high[r][a], codes[a], operand.high[r][at]);
        }
      }
      add_block<kSigned, kField + 1>(words, operand, block);
    }
  }

  inline __m512 value(int r, int a) const {
    if constexpr (FixedPoint<kBits>::kTwoPasses) {
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
  FixedPoint<kBits> operand;
  fold<kBits, kRows, true>(q, static_cast<size_t>(head_dim), scales, minima, head_dim, operand);
  Accumulators<kBits, kRows, 2> sums;
  sums.clear();
  const int32_t blocks = layout.low_plane().blocks();
  for (int32_t block = 0; block < blocks; ++block) {
    CodeWords<kBits> words[2];
    words[0].load(layout, keys, block, 0);
    words[1].load(layout, keys, block, 16);
    sums.template add_block<true>(words, operand, block);
  }
  for (int r = 0; r < kRows; ++r) {
    const __m512 step = _mm512_set1_ps(operand.step[r]);
    const __m512 bias = _mm512_set1_ps(operand.bias[r]);
    for (int a = 0; a < 2; ++a) {
      _mm512_storeu_ps(scores + r * kTileSlots + 16 * a, _mm512_fmadd_ps(sums.value(r, a), step, bias));
    }
  }
}

template <int kBits, int kRows, int kVectors>
inline void values_chunk(const integer::Layout& layout, const SideData& values, int32_t channel,
                         const FixedPoint<kBits>& operand, float* out) {
  Accumulators<kBits, kRows, kVectors> sums;
  sums.clear();
  const int32_t width = layout.low_plane().lanes;
  const int32_t blocks = layout.low_plane().blocks();
  for (int32_t block = 0; block < blocks; ++block) {
    CodeWords<kBits> words[kVectors];
    for (int a = 0; a < kVectors; ++a) words[a].load(layout, values, block, channel + 16 * a);
    sums.template add_block<FixedPoint<kBits>::kTwoPasses>(words, operand, block);
  }
  for (int r = 0; r < kRows; ++r) {
    const __m512 step = _mm512_set1_ps(operand.step[r]);
    const __m512 bias = _mm512_set1_ps(operand.bias[r]);
    for (int a = 0; a < kVectors; ++a) {
      float* target = out + r * width + channel + 16 * a;
      const __m512 before = _mm512_add_ps(_mm512_loadu_ps(target), bias);
      _mm512_storeu_ps(target, _mm512_fmadd_ps(sums.value(r, a), step, before));
    }
  }
}

template <int kBits, int kRows>
inline void values_rows(const SideShape& shape, const SideData* values, int32_t pages, const float* p, float* out) {
  const integer::Layout layout{Side::kValues, kBits, shape.head_dim, shape.group};
  const int32_t width = layout.low_plane().lanes;
  for (int32_t page = 0; page < pages; ++page) {
    const SideData& side = values[page];
    const auto* scales = reinterpret_cast<const uint16_t*>(side.data + layout.scale_offset());
    const auto* minima = reinterpret_cast<const uint16_t*>(side.data + layout.min_offset());
    prefetch_scales(layout, side);
    for (int32_t group = 0; group * shape.group < width; ++group) {
      FixedPoint<kBits> operand;
      fold<kBits, kRows, false>(p + page * kPageSlots, kTileSlots, scales + group * kPageSlots,
                                minima + group * kPageSlots, kPageSlots, operand);
      const int32_t end = (group + 1) * shape.group < width ? (group + 1) * shape.group : width;
      int32_t channel = group * shape.group;
      for (; channel + 32 <= end; channel += 32) values_chunk<kBits, kRows, 2>(layout, side, channel, operand, out);
      if (channel < end) values_chunk<kBits, kRows, 1>(layout, side, channel, operand, out);
    }
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
