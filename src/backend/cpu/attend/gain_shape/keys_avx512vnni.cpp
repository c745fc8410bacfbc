// Scores of gain–shape key pages with int8 dot products: queries are rounded once, gains multiply the sums.
//
// With a key mean + gain · (byte − offset) and a query step · integer: score = gain · step · (Σ integer · byte − offset
// · Σ integer) + query · mean, the last once for all tokens of the page.
#include "backend/cpu/attend/gain_shape/codes_avx512vnni.h"
#include "backend/cpu/dispatch/avx512vnni.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx512vbmi2,avx2,fma,f16c")

namespace kvq::cpu {
namespace {

/// Products of the page's mean with every row.
template <int kRows>
HWY_INLINE __m128 mean_products(const SideLayout& layout, const std::byte* data, const RoundedQueries& q) {
  __m512i sums[kRows];
  HWY_UNROLL(8)
  for (auto& each : sums) each = _mm512_setzero_si512();
  for (int32_t channel = 0; channel < layout.head_dim; channel += 32) {
    const int32_t left = layout.head_dim - channel;
    const __mmask32 lanes = left >= 32 ? ~__mmask32{0} : (__mmask32{1} << left) - 1;
    const __m512i mean = _mm512_cvtepi8_epi16(_mm256_maskz_loadu_epi8(lanes, data + layout.mean_offset() + channel));
    HWY_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
      sums[r] = _mm512_dpwssd_epi32(sums[r], mean, _mm512_loadu_si512(q.fine(r) + channel / 2));
    }
  }
  __m512 floats[kRows];
  alignas(16) float steps[kBlockRows] = {};
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    floats[r] = _mm512_cvtepi32_ps(sums[r]);
    steps[r] = q.fine_step(r);
  }
  const __m128 scale = _mm_set1_ps(Gains::half(data + layout.mean_scale_offset()));
  return _mm_mul_ps(_mm_mul_ps(reduce_rows<Sum, kRows>(floats), scale), _mm_load_ps(steps));
}

template <typename Codes, int kRows>
inline void keys_rows(const SideShape& shape, const SideData& keys, const RoundedQueries& q, float* scores) {
  const SideLayout layout = shape.layout(Side::kKeys, CodeType::gain_scalar(Codes::kBits));
  prefetch_gains(layout, keys);
  const int32_t* bytes[kRows];
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) bytes[r] = q.bytes(r);
  ByteSums<Codes, kRows, 2> sums;
  sums.clear();
  const int32_t blocks = Codes::blocks(layout);
  for (int32_t block = 0; block < blocks; ++block) {
    Codes words[2];
    words[0].load_keys(layout, keys, block, 0);
    words[1].load_keys(layout, keys, block, 16);
    sums.template add_block<Side::kKeys>(words, bytes, block);
  }
  alignas(16) float means[kBlockRows] = {};
  if (shape.page_mean) _mm_store_ps(means, mean_products<kRows>(layout, keys.data, q));
  Gains gains;
  gains.load(layout, keys.data);
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    const __m512 step = _mm512_set1_ps(q.step(r));
    const __m512 offset = _mm512_set1_ps(Codes::kKeyOffset * static_cast<float>(q.sum(r)));
    const __m512 mean = _mm512_set1_ps(means[r]);
    HWY_UNROLL(8)
    for (int a = 0; a < 2; ++a) {
      const __m512 products = _mm512_sub_ps(sums.value(r, a), offset);
      _mm512_storeu_ps(scores + r * kTileSlots + 16 * a,
                       _mm512_fmadd_ps(products, _mm512_mul_ps(gains.of[a], step), mean));
    }
  }
}

template <typename Codes, int kRows>
inline void keys_pages(const SideShape& shape, const SideData* keys, int32_t pages, const QueryRows& q, float* scores) {
  for (int32_t page = 0; page < pages; ++page) {
    keys_rows<Codes, kRows>(shape, keys[page], q.rounded, scores + page * kPageSlots);
  }
}

template <typename Codes>
void vnni_keys(const SideShape& shape, const SideData* keys, int32_t pages, int32_t rows, const QueryRows& q,
               float* scores) {
  if (rows == 1) {
    keys_pages<Codes, 1>(shape, keys, pages, q, scores);
  } else if (rows == 2) {
    keys_pages<Codes, 2>(shape, keys, pages, q, scores);
  } else {
    keys_pages<Codes, 4>(shape, keys, pages, q, scores);
  }
}

}  // namespace
}  // namespace kvq::cpu

HWY_POP_ATTRIBUTES

namespace kvq::cpu {

void set_avx512vnni_gain_shape_keys(KernelTable& table) {
  table.plain(CodeType::gain_scalar(4)).keys = vnni_keys<ScalarCodes<4>>;
  table.plain(CodeType::gain_scalar(3)).keys = vnni_keys<ScalarCodes<3>>;
  table.plain(CodeType::gain_scalar(2)).keys = vnni_keys<ScalarCodes<2>>;
  table.plain(CodeType::gain_scalar(1)).keys = vnni_keys<ScalarCodes<1>>;
  table.plain(CodeType::gain_trellis(3)).keys = vnni_keys<TrellisCodes<3, Side::kKeys>>;
  table.plain(CodeType::gain_trellis(2)).keys = vnni_keys<WindowCodes<2>>;
  table.plain(CodeType::gain_trellis(1)).keys = vnni_keys<WindowCodes<1>>;
}

}  // namespace kvq::cpu
