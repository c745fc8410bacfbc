// Weighted sums of integer value pages with int8 dot products.
#include "backend/cpu/attend/codes_avx512vnni.h"
#include "backend/cpu/dispatch/avx512vnni.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx2,fma,f16c")

namespace kvq::cpu {
namespace {

/// Bounds on p · scale, shared by all channel groups of a run of value pages; one factor each.
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
    _mm_store_ps(out.probability[page], reduce_rows<Maximum, kRows>(largest));
  }
}

inline void bound_scales(const SideLayout& layout, const SideData& side, float* out) {
  const auto* scales = reinterpret_cast<const uint16_t*>(side.data + layout.scale_offset());
  for (int32_t group = 0; group < layout.value_groups(); group += 4) {
    __m512 largest[4];
    for (int32_t i = 0; i < 4; ++i) {
      const int32_t at = group + i < layout.value_groups() ? group + i : group;
      const __m512i numbers = _mm512_loadu_si512(scales + at * kPageSlots);
      largest[i] = _mm512_max_ps(_mm512_cvtph_ps(_mm512_castsi512_si256(numbers)),
                                 _mm512_cvtph_ps(_mm512_extracti64x4_epi64(numbers, 1)));
    }
    _mm_storeu_ps(out + group, reduce_rows<Maximum, 4>(largest));
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

inline __m512 load_float16(const uint16_t* numbers) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(numbers)));
}

template <int kBits, int kRows>
inline void fold_probabilities(const float* p, const uint16_t* scales, const uint16_t* minima, __m128 bound,
                               ValueOperand<kBits>& out, ValueBias<kRows>& bias) {
  alignas(16) float factor[kBlockRows];
  _mm_store_ps(factor, _mm_div_ps(_mm_set1_ps(kTop<kBits, false>), _mm_max_ps(bound, _mm_set1_ps(1e-30F))));
  _mm_store_ps(out.step, _mm_mul_ps(bound, _mm_set1_ps(1.0F / kTop<kBits, false>)));
  const __m512 middle = _mm512_set1_ps(kMiddle<kBits>);
  const __m512 scale[2] = {load_float16(scales), load_float16(scales + 16)};
  const __m512 center[2] = {_mm512_fmadd_ps(middle, scale[0], load_float16(minima)),
                            _mm512_fmadd_ps(middle, scale[1], load_float16(minima + 16))};
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
  return reduce_rows<Sum, kRows>(rows);
}

/// Sums all pages of a run for `kVectors` vectors of channels; the first vectors of a group also fold.
template <int kBits, int kRows, int kVectors>
inline void values_chunk(const SideLayout& layout, const SideData* values, int32_t pages, int32_t channel,
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
inline void values_channels(const SideLayout& layout, const SideData* values, int32_t pages, int32_t channel,
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
  const SideLayout layout = shape.layout(Side::kValues, CodeType::integer(kBits));
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
      const auto* minima = reinterpret_cast<const uint16_t*>(data + layout.minimum_offset()) + group * kPageSlots;
      const __m128 bound = _mm_mul_ps(_mm_load_ps(bounds.probability[page]), _mm_set1_ps(bounds.scale[page][group]));
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

void set_avx512vnni_values(KernelTable& table) {
  table.plain(CodeType::integer(2)).values = vnni_values<2>;
  table.plain(CodeType::integer(3)).values = vnni_values<3>;
  table.plain(CodeType::integer(4)).values = vnni_values<4>;
  table.plain(CodeType::integer(8)).values = vnni_values<8>;
}

}  // namespace kvq::cpu
