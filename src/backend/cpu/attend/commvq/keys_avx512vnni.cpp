// Scores of CommVQ keys: centres summed by table lookups with slots as lanes, scores by 16-bit dot products.
#include "backend/cpu/attend/fixed_point_avx512vnni.h"
#include "backend/cpu/dispatch/avx512vnni.h"
#include "formats/commvq/commvq.h"
#include "formats/commvq/key_lookup.h"

#include <algorithm>

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx2,fma,f16c")

namespace kvq::cpu {
namespace {

constexpr int32_t kMaxPairs = kMaxTrainedDim / 2;
constexpr int32_t kPairWords = kPageSlots;  // words of a plane: {re, im} of the slots

/// Unpacks the indices of 32 slots to bytes: a, then b + 64, which selects the second of two tables.
inline __m512i unpack_indices(const std::byte* stage) {
  // Moves the 24 bits of four slots' a, and those of their b, to a quadword each.
  alignas(64) static constexpr uint8_t kBytes[64] = {0,  1,  2,  24, 25, 26, 0, 0, 3,  4,  5,  27, 28, 29, 0, 0,
                                                     6,  7,  8,  30, 31, 32, 0, 0, 9,  10, 11, 33, 34, 35, 0, 0,
                                                     12, 13, 14, 36, 37, 38, 0, 0, 15, 16, 17, 39, 40, 41, 0, 0,
                                                     18, 19, 20, 42, 43, 44, 0, 0, 21, 22, 23, 45, 46, 47, 0, 0};
  const __m512i fields = _mm512_maskz_loadu_epi8(0x0000FFFFFFFFFFFFULL, stage);
  const __m512i shifts = _mm512_set1_epi64(0x2A12240C1E061800LL);
  const __m512i indices =
      _mm512_multishift_epi64_epi8(shifts, _mm512_permutexvar_epi8(_mm512_load_si512(kBytes), fields));
  constexpr int kAndThenOr = 0xEA;
  return _mm512_ternarylogic_epi32(indices, _mm512_set1_epi8(63), _mm512_set1_epi16(0x4000), kAndThenOr);
}

constexpr int32_t kPagesAtOnce = 4;

/// Indices of a stage.
struct Indices {
  __m512i pages[kPagesAtOnce];
};

/// Multiplies the sums of a pair by e^{iθ} and stores {re, im} of slots in words, in the order in which registers
/// unpack.
inline void rotate_and_store(__m512i real, __m512i imaginary, const int16_t* rotations, int16_t* plane) {
  const __m512i cosine = _mm512_loadu_si512(rotations);
  const __m512i sine = _mm512_loadu_si512(rotations + kPageSlots);
  const __m512i x = _mm512_sub_epi16(_mm512_mulhrs_epi16(real, cosine), _mm512_mulhrs_epi16(imaginary, sine));
  const __m512i y = _mm512_add_epi16(_mm512_mulhrs_epi16(real, sine), _mm512_mulhrs_epi16(imaginary, cosine));
  _mm512_storeu_si512(plane, _mm512_unpacklo_epi16(x, y));
  _mm512_storeu_si512(plane + kPageSlots, _mm512_unpackhi_epi16(x, y));
}

/// Sums the pairs of one group. A table is read once for all pages; `planes`: the first page's.
template <int kPages>
inline void sum_pairs(const KeyLookup& lookup, int32_t stages, int32_t begin, int32_t end, const Indices* indices,
                      size_t plane_size, const int16_t* rotations, int16_t* planes) {
  for (int32_t pair = begin; pair < end; ++pair) {
    const KeyLookup::Table* tables = lookup.tables(pair);
    const uint32_t* multipliers = lookup.multipliers(pair);
    __m512i real[kPages];
    __m512i imaginary[kPages];
    HWY_UNROLL(8)
    for (int p = 0; p < kPages; ++p) real[p] = imaginary[p] = _mm512_setzero_si512();
    for (int32_t stage = 0; stage < stages; ++stage) {
      const __m512i re = _mm512_load_si512(tables[stage].real);
      const __m512i im = _mm512_load_si512(tables[stage].imaginary);
      const __m512i minus_im = _mm512_sub_epi8(_mm512_setzero_si512(), im);
      const __m512i multiplier = _mm512_set1_epi32(static_cast<int32_t>(multipliers[stage]));
      HWY_UNROLL(8)
      for (int p = 0; p < kPages; ++p) {
        const __m512i index = indices[stage].pages[p];
        const __m512i of_real = _mm512_permutex2var_epi8(re, index, minus_im);
        const __m512i of_imaginary = _mm512_permutex2var_epi8(im, index, re);
        real[p] = _mm512_add_epi16(real[p], _mm512_maddubs_epi16(multiplier, of_real));
        imaginary[p] = _mm512_add_epi16(imaginary[p], _mm512_maddubs_epi16(multiplier, of_imaginary));
      }
    }
    const auto at = static_cast<size_t>(pair) * 2 * kPairWords;
    HWY_UNROLL(8)
    for (int p = 0; p < kPages; ++p) {
      rotate_and_store(real[p], imaginary[p], rotations + at, planes + static_cast<size_t>(p) * plane_size + at);
    }
  }
}

void vnni_lookup_keys(const KeyLookup& lookup, const CodebookShape& shape, const PageSides& keys, int32_t head,
                      int32_t pages, const int16_t* rotations, int16_t* planes) {
  const commvq::KeyLayout layout = commvq::key_layout(shape);
  const int32_t stages = shape.keys.stages;
  const auto plane_size = static_cast<size_t>(kPageSlots * shape.head_dim);
  for (int32_t page = 0; page < pages; ++page) {
    for (size_t offset = 0; offset < layout.bytes(); offset += 64) prefetch(keys.later(head, page) + offset);
  }
  Indices indices[kMaxKeyStages];
  for (int32_t group = 0; group < shape.groups(); ++group) {
    const int32_t begin = group * shape.keys.group;
    const int32_t end = begin + shape.keys.group;
    for (int32_t page = 0; page < pages;) {
      const int32_t count = page + kPagesAtOnce <= pages ? kPagesAtOnce : 1;
      for (int32_t stage = 0; stage < stages; ++stage) {
        const size_t offset = static_cast<size_t>(group * stages + stage) * layout.stage_bytes();
        for (int32_t p = 0; p < count; ++p) {
          indices[stage].pages[p] = unpack_indices(keys.at(head, page + p) + offset);
        }
      }
      int16_t* const out = planes + static_cast<size_t>(page) * plane_size;
      if (count == kPagesAtOnce) {
        sum_pairs<kPagesAtOnce>(lookup, stages, begin, end, indices, plane_size, rotations, out);
      } else {
        sum_pairs<1>(lookup, stages, begin, end, indices, plane_size, rotations, out);
      }
      page += count;
    }
  }
}

/// Queries of a block times the pairs' factors, in units that keep sums of products with keys within 32 bits: Σ |q| |k|
/// ≤ Σ |q| · 32767.
struct BlockQueries {
  alignas(64) float real[kBlockRows][kMaxPairs];
  alignas(64) float imaginary[kBlockRows][kMaxPairs];
  float step[kBlockRows];
};

template <int kRows>
inline void prepare_queries(const CodebookShape& shape, const float* factors, const float* q, BlockQueries& out) {
  constexpr float kLargestSum = 65000.0F;
  constexpr float kLargestInteger = 32700.0F;
  const int32_t pairs = shape.pairs();
  const bool half = shape.pairing == KVQ_ROPE_HALF;
  const int32_t imaginary_offset = half ? pairs : 1;
  const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i channels = half ? lanes : _mm512_slli_epi32(lanes, 1);
  for (int r = 0; r < kRows; ++r, q += shape.head_dim) {
    __m512 sum = _mm512_setzero_ps();
    __m512 largest = _mm512_setzero_ps();
    for (int32_t pair = 0; pair < pairs; pair += 16) {
      const __mmask16 mask = _mm512_cmplt_epi32_mask(lanes, _mm512_set1_epi32(pairs - pair));
      const float* first = q + (half ? pair : 2 * pair);
      const __m512 zero = _mm512_setzero_ps();
      const __m512 factor = _mm512_maskz_loadu_ps(mask, factors + pair);
      const __m512 x = _mm512_mul_ps(factor, _mm512_mask_i32gather_ps(zero, mask, channels, first, 4));
      const __m512 y =
          _mm512_mul_ps(factor, _mm512_mask_i32gather_ps(zero, mask, channels, first + imaginary_offset, 4));
      const __m512 magnitude = _mm512_sqrt_ps(_mm512_fmadd_ps(x, x, _mm512_mul_ps(y, y)));
      sum = _mm512_add_ps(sum, magnitude);
      largest = _mm512_max_ps(largest, magnitude);
      _mm512_store_ps(out.real[r] + pair, x);
      _mm512_store_ps(out.imaginary[r] + pair, y);
    }
    const float step =
        std::max({_mm512_reduce_add_ps(sum) / kLargestSum, _mm512_reduce_max_ps(largest) / kLargestInteger, 1e-30F});
    const __m512 inverse = _mm512_set1_ps(1.0F / step);
    for (int32_t pair = 0; pair < pairs; pair += 16) {
      _mm512_store_ps(out.real[r] + pair, _mm512_mul_ps(inverse, _mm512_load_ps(out.real[r] + pair)));
      _mm512_store_ps(out.imaginary[r] + pair, _mm512_mul_ps(inverse, _mm512_load_ps(out.imaginary[r] + pair)));
    }
    out.step[r] = step;
  }
}

/// Rotates queries back by a page's position, to 16-bit {re, im}.
template <int kRows>
inline void rotate_queries(const BlockQueries& queries, int32_t pairs, const float* rotation,
                           int32_t (&words)[kRows][kMaxPairs]) {
  const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  for (int32_t pair = 0; pair < pairs; pair += 16) {
    const __mmask16 mask = _mm512_cmplt_epi32_mask(lanes, _mm512_set1_epi32(pairs - pair));
    const __m512 cosine = _mm512_maskz_loadu_ps(mask, rotation + pair);
    const __m512 sine = _mm512_maskz_loadu_ps(mask, rotation + pairs + pair);
    HWY_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
      const __m512 x = _mm512_load_ps(queries.real[r] + pair);
      const __m512 y = _mm512_load_ps(queries.imaginary[r] + pair);
      const __m512 one = _mm512_set1_ps(1.0F);
      const __m512i real = round_to_low_bits(_mm512_fmadd_ps(x, cosine, _mm512_mul_ps(y, sine)), one);
      const __m512i imaginary = round_to_low_bits(_mm512_fmsub_ps(y, cosine, _mm512_mul_ps(x, sine)), one);
      _mm512_store_si512(words[r] + pair, _mm512_mask_blend_epi16(0xAAAAAAAA, real, _mm512_slli_epi32(imaginary, 16)));
    }
  }
}

template <int kRows>
inline void score_page(const CodebookShape& shape, const LookupPage& page, const BlockQueries& queries, float* scores) {
  alignas(64) int32_t words[kRows][kMaxPairs];
  rotate_queries<kRows>(queries, shape.pairs(), page.rotation, words);
  __m512i sums[kRows][2];
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = _mm512_setzero_si512();
  const int16_t* plane = page.plane;
  for (int32_t pair = 0; pair < shape.pairs(); ++pair, plane += 2 * kPairWords) {
    const __m512i first = _mm512_loadu_si512(plane);
    const __m512i second = _mm512_loadu_si512(plane + kPairWords);
    HWY_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
      const __m512i query = _mm512_set1_epi32(words[r][pair]);
      sums[r][0] = _mm512_dpwssd_epi32(sums[r][0], first, query);
      sums[r][1] = _mm512_dpwssd_epi32(sums[r][1], second, query);
    }
  }
  // Undoes the unpacking: slots 8i to 8i + 3 are in the first words, 8i + 4 to 8i + 7 in the second.
  const __m512i low = _mm512_set_epi32(23, 22, 21, 20, 7, 6, 5, 4, 19, 18, 17, 16, 3, 2, 1, 0);
  const __m512i high = _mm512_set_epi32(31, 30, 29, 28, 15, 14, 13, 12, 27, 26, 25, 24, 11, 10, 9, 8);
  const __m512i norms = _mm512_loadu_si512(page.norms);
  const __m512 norm[2] = {_mm512_cvtph_ps(_mm512_castsi512_si256(norms)),
                          _mm512_cvtph_ps(_mm512_extracti64x4_epi64(norms, 1))};
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    const __m512 step = _mm512_set1_ps(queries.step[r]);
    const __m512 first = _mm512_cvtepi32_ps(_mm512_permutex2var_epi32(sums[r][0], low, sums[r][1]));
    const __m512 second = _mm512_cvtepi32_ps(_mm512_permutex2var_epi32(sums[r][0], high, sums[r][1]));
    _mm512_storeu_ps(scores + r * kTileSlots, _mm512_mul_ps(first, _mm512_mul_ps(step, norm[0])));
    _mm512_storeu_ps(scores + r * kTileSlots + 16, _mm512_mul_ps(second, _mm512_mul_ps(step, norm[1])));
  }
}

template <int kRows>
inline void score_pages(const KeyLookup& lookup, const CodebookShape& shape, const LookupPage* pages, int32_t count,
                        const float* q, float* scores) {
  BlockQueries queries;
  prepare_queries<kRows>(shape, lookup.factors(), q, queries);
  for (int32_t page = 0; page < count; ++page) {
    score_page<kRows>(shape, pages[page], queries, scores + page * kPageSlots);
  }
}

void vnni_lookup_scores(const KeyLookup& lookup, const CodebookShape& shape, const LookupPage* pages, int32_t count,
                        int32_t rows, const float* q, float* scores) {
  if (rows == 1) {
    score_pages<1>(lookup, shape, pages, count, q, scores);
  } else if (rows == 2) {
    score_pages<2>(lookup, shape, pages, count, q, scores);
  } else {
    score_pages<4>(lookup, shape, pages, count, q, scores);
  }
}

}  // namespace
}  // namespace kvq::cpu

HWY_POP_ATTRIBUTES

namespace kvq::cpu {

void set_avx512vnni_commvq_keys(CommvqKernels& kernels) {
  kernels.lookup_keys = vnni_lookup_keys;
  kernels.lookup_scores = vnni_lookup_scores;
}

}  // namespace kvq::cpu
