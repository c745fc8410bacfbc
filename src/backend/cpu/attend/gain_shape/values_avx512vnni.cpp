// Weighted sums of gain–shape value pages with int8 dot products: gains multiply probabilities, which are rounded to
// bytes with one step per row and page.
#include "backend/cpu/attend/gain_shape/codes_avx512vnni.h"
#include "backend/cpu/dispatch/avx512vnni.h"

#include <algorithm>

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx512vbmi2,avx2,fma,f16c")

namespace kvq::cpu {
namespace {

constexpr float kTopWeight = 255.0F;
constexpr int kWeightWords = kPageSlots / 4;

/// Rounded probabilities times gains of one page.
struct Weights {
  alignas(64) int32_t bytes[kBlockRows][kWeightWords];
  alignas(16) float step[kBlockRows];
};

/// Adds step · Σ integer in lanes to `sums`.
template <int kRows>
HWY_INLINE void weigh(const SideLayout& layout, const std::byte* data, const float* p, Weights& out,
                      __m256 (&sums)[kRows]) {
  Gains gains;
  gains.load(layout, data);
  __m512 weights[kRows][2];
  __m512 largest[kRows];
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(8)
    for (int a = 0; a < 2; ++a) {
      weights[r][a] = _mm512_mul_ps(_mm512_loadu_ps(p + r * kTileSlots + 16 * a), gains.of[a]);
    }
    largest[r] = _mm512_max_ps(weights[r][0], weights[r][1]);
  }
  const __m128 bound = reduce_rows<Maximum, kRows>(largest);
  alignas(16) float factor[kBlockRows];
  _mm_store_ps(factor, _mm_div_ps(_mm_set1_ps(kTopWeight), _mm_max_ps(bound, _mm_set1_ps(1e-30F))));
  _mm_store_ps(out.step, _mm_mul_ps(bound, _mm_set1_ps(1.0F / kTopWeight)));
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    __m512i integers[2];
    HWY_UNROLL(8)
    for (int a = 0; a < 2; ++a) {
      integers[a] = _mm512_cvttps_epi32(
          _mm512_fmadd_ps(weights[r][a], _mm512_set1_ps(factor[r]), _mm512_load_ps(kDither.data() + 16 * a)));
    }
    const __m256i bytes = low_bytes(integers[0], integers[1]);
    _mm256_store_si256(reinterpret_cast<__m256i*>(out.bytes[r]), bytes);
    const __m256i sum = _mm256_dpbusd_epi32(_mm256_setzero_si256(), bytes, _mm256_set1_epi8(1));
    sums[r] = _mm256_fmadd_ps(_mm256_set1_ps(out.step[r]), _mm256_cvtepi32_ps(sum), sums[r]);
  }
}

/// Sums all pages of a run for kVectors vectors of channels.
template <typename Codes, int kRows, int kVectors>
inline void values_channels(const SideLayout& layout, const SideData* values, int32_t pages, int32_t channel,
                            const Weights* weights, const Chained* chained, const float (&bias)[kBlockRows],
                            float* out) {
  const int32_t width = layout.low_plane().lanes;
  const int32_t blocks = Codes::blocks(layout);
  __m512 totals[kRows][kVectors];
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(8)
    for (int a = 0; a < kVectors; ++a) {
      const __m512 before = _mm512_loadu_ps(out + r * width + channel + 16 * a);
      totals[r][a] = _mm512_sub_ps(before, _mm512_set1_ps(bias[r]));
    }
  }
  for (int32_t page = 0; page < pages; ++page) {
    const int32_t* bytes[kRows];
    HWY_UNROLL(8)
    for (int r = 0; r < kRows; ++r) bytes[r] = weights[page].bytes[r];
    ByteSums<Codes, kRows, kVectors> sums;
    sums.clear();
    for (int32_t block = 0; block < blocks; ++block) {
      Codes words[kVectors];
      HWY_UNROLL(8)
      for (int a = 0; a < kVectors; ++a) {
        words[a].load_values(layout, values[page], chained + page * blocks, block, channel + 16 * a);
      }
      sums.template add_block<Side::kValues>(words, bytes, block);
    }
    HWY_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
      const __m512 step = _mm512_set1_ps(weights[page].step[r]);
      HWY_UNROLL(8)
      for (int a = 0; a < kVectors; ++a) totals[r][a] = _mm512_fmadd_ps(sums.value(r, a), step, totals[r][a]);
    }
  }
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(8)
    for (int a = 0; a < kVectors; ++a) _mm512_storeu_ps(out + r * width + channel + 16 * a, totals[r][a]);
  }
}

/// Vectors of trellis bits that a tile takes with heads of 256; of larger heads fewer pages are added at a time.
template <typename Codes>
struct ChainedTile {
  static constexpr int32_t kBlocks = kPageSlots / (4 * Codes::kFields);  // of a page
  static constexpr int32_t kVectors = kTilePages * kBlocks * Chained::vectors_of(256);
};

template <typename Codes, int kRows>
inline void values_rows(const SideShape& shape, const SideData* values, int32_t pages, const float* p, float* out) {
  const SideLayout layout = shape.layout(Side::kValues, CodeType::gain_scalar(Codes::kBits));
  const int32_t width = layout.low_plane().lanes;
  const int32_t blocks = Codes::blocks(layout);
  Weights weights[kTilePages];
  __m512i chained_words[Codes::kTrellis ? ChainedTile<Codes>::kVectors : 1];
  Chained chained[Codes::kTrellis ? kTilePages * ChainedTile<Codes>::kBlocks : 1];
  __m256 sums[kRows];
  HWY_UNROLL(8)
  for (auto& each : sums) each = _mm256_setzero_ps();
  for (int32_t page = 0; page < pages; ++page) {
    prefetch_gains(layout, values[page]);
    weigh<kRows>(layout, values[page].data, p + page * kPageSlots, weights[page], sums);
    if constexpr (Codes::kTrellis) {
      for (int32_t block = 0; block < blocks; ++block) {
        const size_t offset = Codes::plane_offset(layout) + sizeof(uint32_t) * static_cast<size_t>(block * width);
        chained[page * blocks + block].words = chained_words + (page * blocks + block) * Chained::vectors_of(width);
        chained[page * blocks + block].load(values[page].data + offset, values[page].later + offset, width / 16);
      }
    }
  }
  __m512 rows[kRows];
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) rows[r] = _mm512_zextps256_ps512(sums[r]);
  alignas(16) float bias[kBlockRows];
  _mm_store_ps(bias, _mm_mul_ps(reduce_rows<Sum, kRows>(rows), _mm_set1_ps(Codes::kValueOffset)));
  int32_t channel = 0;
  for (; channel + 32 <= width; channel += 32) {
    values_channels<Codes, kRows, 2>(layout, values, pages, channel, weights, chained, bias, out);
  }
  if (channel < width) {
    values_channels<Codes, kRows, 1>(layout, values, pages, channel, weights, chained, bias, out);
  }
}

template <typename Codes>
void vnni_values(const SideShape& shape, const SideData* values, int32_t pages, int32_t rows, const float* p,
                 float* out) {
  int32_t at_once = kTilePages;
  if constexpr (Codes::kTrellis) {
    const int32_t of_page = ChainedTile<Codes>::kBlocks * Chained::vectors_of(padded_dim(shape.head_dim));
    at_once = std::min(at_once, ChainedTile<Codes>::kVectors / of_page);
  }
  for (; pages > 0; pages -= at_once, values += at_once, p += at_once * kPageSlots) {
    const int32_t some = std::min(pages, at_once);
    if (rows == 1) {
      values_rows<Codes, 1>(shape, values, some, p, out);
    } else if (rows == 2) {
      values_rows<Codes, 2>(shape, values, some, p, out);
    } else {
      values_rows<Codes, 4>(shape, values, some, p, out);
    }
  }
}

}  // namespace
}  // namespace kvq::cpu

HWY_POP_ATTRIBUTES

namespace kvq::cpu {

void set_avx512vnni_gain_shape_values(KernelTable& table) {
  table.plain(CodeType::gain_scalar(4)).values = vnni_values<ScalarCodes<4>>;
  table.plain(CodeType::gain_scalar(3)).values = vnni_values<ScalarCodes<3>>;
  table.plain(CodeType::gain_scalar(2)).values = vnni_values<ScalarCodes<2>>;
  table.plain(CodeType::gain_scalar(1)).values = vnni_values<ScalarCodes<1>>;
  table.plain(CodeType::gain_trellis(3)).values = vnni_values<TrellisCodes<3, Side::kValues>>;
  table.plain(CodeType::gain_trellis(2)).values = vnni_values<TrellisCodes<2, Side::kValues>>;
  table.plain(CodeType::gain_trellis(1)).values = vnni_values<TrellisCodes<1, Side::kValues>>;
}

}  // namespace kvq::cpu
