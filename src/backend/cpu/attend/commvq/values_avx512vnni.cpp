// Weighted sums of CommVQ values: the bits of four slots index the sum of their weights.
#include "backend/cpu/attend/fixed_point_avx512vnni.h"
#include "backend/cpu/dispatch/avx512vnni.h"

#include <algorithm>

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx2,fma,f16c")

namespace kvq::cpu {
namespace {

/// Sums of the weights of four slots, as bytes: entry n of sixteen adds the weights of the slots whose bit of n is set.
/// Byte i of a word holds slots 4f + i as bits f: bits 0 to 3 index the i-th sixteen entries of `low`, the others those
/// of `high`. Each sixteen entries have their own step, the row's step times a byte, so that small weights are as exact
/// as large ones.
struct WeightTables {
  __m512i entries[2];      // low, high
  int32_t multipliers[2];  // one byte per byte of a word
};

template <int kRows>
struct TileTables {
  WeightTables pages[kTilePages][kRows];
  float step[kRows];
};

/// Sums of slots i, i + 4, i + 8 and i + 12, in every four lanes.
inline __m512 sum_fours(__m512 weights) {
  const __m512 pairs = _mm512_add_ps(weights, _mm512_shuffle_f32x4(weights, weights, 0x4E));
  return _mm512_add_ps(pairs, _mm512_shuffle_f32x4(pairs, pairs, 0xB1));
}

/// Sixteen entries for each of four bytes. `weights`: 16 bits each, per eight: four slots 4i … then 16 + 4i ….
/// `positions`: where byte i's slot of field 0 lies.
inline __m512i sum_weights(__m512i weights, __m512i positions) {
  const auto of_field = [&](int field) {
    return _mm512_add_epi16(positions, _mm512_set1_epi16(static_cast<int16_t>(8 * field)));
  };
  __m512i entries = _mm512_maskz_permutexvar_epi16(0xAAAAAAAA, of_field(0), weights);
  entries = _mm512_add_epi16(entries, _mm512_maskz_permutexvar_epi16(0xCCCCCCCC, of_field(1), weights));
  entries = _mm512_add_epi16(entries, _mm512_maskz_permutexvar_epi16(0xF0F0F0F0, of_field(2), weights));
  const __m512i with_last = _mm512_add_epi16(entries, _mm512_permutexvar_epi16(of_field(3), weights));
  const __m512i round_to_byte = _mm512_set1_epi16(256);  // (x · 256 + 2^14) >> 15
  return _mm512_packus_epi16(_mm512_mulhrs_epi16(entries, round_to_byte),
                             _mm512_mulhrs_epi16(with_last, round_to_byte));
}

constexpr float kLargestByte = 254.0F;
constexpr float kLargestMultiplier = 127.0F;

/// Sixteen weights as integers, with 128 units to a step of their table. `unit`: step times 1/127.
inline __m512i round_weights(__m512 weights, __m512 per_multiplier, __m512 one_step, int32_t& multipliers) {
  const __m512 least = _mm512_mul_ps(sum_fours(weights), per_multiplier);
  const __m512 multiplier = _mm512_max_ps(_mm512_set1_ps(1.0F), _mm512_roundscale_ps(least, _MM_FROUND_TO_POS_INF));
  multipliers = _mm_cvtsi128_si32(_mm_cvtepi32_epi8(_mm512_castsi512_si128(_mm512_cvtps_epi32(multiplier))));
  return _mm512_cvtps_epi32(_mm512_mul_ps(weights, _mm512_mul_ps(one_step, _mm512_rcp14_ps(multiplier))));
}

/// Builds a row's tables for all pages; returns the sum of all weights.
template <int kRows>
inline float fill_tables(const BitPlanes& planes, const float* p, int r, TileTables<kRows>& out) {
  alignas(64) float weights[kTileSlots];
  __m512 total = _mm512_setzero_ps();
  __m512 largest = _mm512_setzero_ps();
  for (int32_t slot = 0; slot < planes.pages * kPageSlots; slot += 16) {
    const __m512 scale = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(planes.scales + slot)));
    const __m512 weight = _mm512_mul_ps(_mm512_loadu_ps(p + slot), scale);
    _mm512_store_ps(weights + slot, weight);
    total = _mm512_add_ps(total, weight);
    largest = _mm512_max_ps(largest, sum_fours(weight));
  }
  const float bound = std::max(_mm512_reduce_max_ps(largest), 1e-30F);
  const float step = bound / (kLargestByte * kLargestMultiplier);
  out.step[r] = step;
  // A multiplier may round up to 127.0001, so the largest is scaled down slightly.
  const __m512 per_multiplier = _mm512_set1_ps(0.99999F * kLargestMultiplier / bound);
  const __m512 one_step = _mm512_set1_ps(128.0F / step);
  const __m512i low = _mm512_set_epi64(0x0003000300030003LL, 0x0003000300030003LL, 0x0002000200020002LL,
                                       0x0002000200020002LL, 0x0001000100010001LL, 0x0001000100010001LL, 0, 0);
  const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(4));
  for (int32_t page = 0; page < planes.pages; ++page) {
    const float* of_page = weights + page * kPageSlots;
    WeightTables& tables = out.pages[page][r];
    const __m512i first = round_weights(_mm512_load_ps(of_page), per_multiplier, one_step, tables.multipliers[0]);
    const __m512i second = round_weights(_mm512_load_ps(of_page + 16), per_multiplier, one_step, tables.multipliers[1]);
    const __m512i integers = _mm512_packs_epi32(first, second);
    tables.entries[0] = sum_weights(integers, low);
    tables.entries[1] = sum_weights(integers, high);
  }
  return _mm512_reduce_add_ps(total);
}

/// Vectors of lanes that share loads of the tables.
constexpr int32_t kVectors = 4;
constexpr int32_t kLanes = 16 * kVectors;

/// Sums up to kLanes lanes of all pages of one part.
template <int kRows>
inline void add_lanes(const BitPlanes& planes, int32_t part, int32_t lane, const TileTables<kRows>& tables, float* sums,
                      size_t stride) {
  const int32_t left = planes.lanes - lane;
  const uint64_t lanes = left < kLanes ? (uint64_t{1} << static_cast<uint32_t>(left)) - 1 : ~uint64_t{0};
  __mmask16 mask[kVectors];
  for (int a = 0; a < kVectors; ++a) mask[a] = static_cast<__mmask16>(lanes >> static_cast<uint32_t>(16 * a));
  const __m512i nibble = _mm512_set1_epi8(15);
  const __m512i byte = _mm512_set1_epi32(0x30201000);  // first entry for each byte of a word
  constexpr int kAndThenOr = 0xEA;
  __m512i sum[kRows][kVectors];
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(8)
    for (int a = 0; a < kVectors; ++a) sum[r][a] = _mm512_setzero_si512();
  }
  for (int32_t page = 0; page < planes.pages; ++page) {
    const size_t offset = sizeof(uint32_t) * static_cast<size_t>(lane);
    const std::byte* words = planes.sides.at(planes.first_head + part, page) + offset;
    const std::byte* later = planes.sides.later(planes.first_head + part, page) + offset;
    __m512i indices[2][kVectors];
    HWY_UNROLL(8)
    for (int a = 0; a < kVectors; ++a) {
      prefetch(later + 64 * a);
      const __m512i word = _mm512_maskz_loadu_epi32(mask[a], words + 64 * a);
      indices[0][a] = _mm512_ternarylogic_epi32(word, nibble, byte, kAndThenOr);
      indices[1][a] = _mm512_ternarylogic_epi32(_mm512_srli_epi32(word, 4), nibble, byte, kAndThenOr);
    }
    HWY_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
      const WeightTables& table = tables.pages[page][r];
      HWY_UNROLL(2)
      for (int half = 0; half < 2; ++half) {
        const __m512i multipliers = _mm512_set1_epi32(table.multipliers[half]);
        HWY_UNROLL(8)
        for (int a = 0; a < kVectors; ++a) {
          const __m512i weights = _mm512_permutexvar_epi8(indices[half][a], table.entries[half]);
          sum[r][a] = _mm512_dpbusd_epi32(sum[r][a], weights, multipliers);
        }
      }
    }
  }
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    const __m512 step = _mm512_set1_ps(tables.step[r]);
    HWY_UNROLL(8)
    for (int a = 0; a < kVectors; ++a) {
      float* to = sums + static_cast<size_t>(r) * stride + 16 * a;
      const __m512 before = _mm512_maskz_loadu_ps(mask[a], to);
      _mm512_mask_storeu_ps(to, mask[a], _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[r][a]), step, before));
    }
  }
}

template <int kRows>
inline void add_bits(const BitPlanes& planes, const float* p, float* sums, size_t stride, size_t total) {
  TileTables<kRows> tables;
  for (int r = 0; r < kRows; ++r) {
    sums[static_cast<size_t>(r) * stride + total] += fill_tables<kRows>(planes, p + r * kTileSlots, r, tables);
  }
  for (int32_t part = 0; part < planes.parts; ++part) {
    const size_t scales = sizeof(uint32_t) * static_cast<size_t>(planes.lanes);
    for (int32_t page = 0; page < planes.pages; ++page) {
      planes.sides.prefetch_record(planes.first_head + part, page);
      prefetch(planes.sides.later(planes.first_head + part, page) + scales);
    }
    for (int32_t lane = 0; lane < planes.lanes; lane += kLanes) {
      add_lanes<kRows>(planes, part, lane, tables, sums + static_cast<ptrdiff_t>(part) * planes.lanes + lane, stride);
    }
  }
}

void vnni_sum_bits(const BitPlanes& planes, int32_t rows, const float* p, float* sums, size_t stride, size_t total) {
  if (rows == 1) {
    add_bits<1>(planes, p, sums, stride, total);
  } else if (rows == 2) {
    add_bits<2>(planes, p, sums, stride, total);
  } else {
    add_bits<4>(planes, p, sums, stride, total);
  }
}

}  // namespace
}  // namespace kvq::cpu

HWY_POP_ATTRIBUTES

namespace kvq::cpu {

void set_avx512vnni_commvq_values(CommvqKernels& kernels) { kernels.sum_bits = vnni_sum_bits; }

}  // namespace kvq::cpu
