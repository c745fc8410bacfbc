// Key centres in 16-bit dot products.
#include "backend/cpu/attend/fixed_point_avx512vnni.h"
#include "backend/cpu/attend/gain_shape/kernels.h"
#include "backend/cpu/dispatch/avx512vnni.h"

#include <algorithm>
#include <limits>

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx2,fma,f16c")

namespace kvq::cpu {
namespace {

using centred::RotatedCentres;
using centred::RotationOrder;

constexpr int32_t kLanes = RotationOrder::kLanes;
constexpr int32_t kWords = 16;    // words in a vector
constexpr int32_t kTogether = 4;  // slots in a vector of a plane
constexpr int32_t kMaxVectors = 2 * kMaxTrainedDim / kLanes;

constexpr int32_t kSlotsAtOnce = 4;

/// Best centres of some slots so far, by lane.
struct Best {
  __m512 score;
  __m512i place;

  void offer(__m512 other, __m512i other_place) {
    const __mmask16 better = _mm512_cmp_ps_mask(other, score, _CMP_GT_OQ);
    score = _mm512_mask_mov_ps(score, better, other);
    place = _mm512_mask_mov_epi32(place, better, other_place);
  }
  /// The first of the best.
  uint8_t get() const {
    const __mmask16 highest = _mm512_cmp_ps_mask(score, _mm512_set1_ps(_mm512_reduce_max_ps(score)), _CMP_EQ_OQ);
    return static_cast<uint8_t>(_mm512_mask_reduce_min_epi32(highest, place));
  }
};

/// Compares kVectors vectors of centres from `first`.
template <int kVectors>
inline void offer_centres(const centred::CentreSearch& search, const float* biases, const uint32_t* words,
                          const float* units, int32_t first, Best (&best)[kSlotsAtOnce]) {
  const int32_t padded = search.padded_count();
  const auto* centres = reinterpret_cast<const int32_t*>(search.rounded.data()) + first;
  __m512i sums[kVectors][kSlotsAtOnce];
  for (int v = 0; v < kVectors; ++v) {
    // Bytes of slots are offset by 128.
    const __m512i totals = _mm512_loadu_si512(search.totals.data() + first + v * kWords);
    for (int i = 0; i < kSlotsAtOnce; ++i) {
      sums[v][i] = _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(totals, 7));
    }
  }
  for (int32_t quad = 0; quad < search.quads(); ++quad, centres += padded, words += kPageSlots) {
    __m512i numbers[kSlotsAtOnce];
    for (int i = 0; i < kSlotsAtOnce; ++i) numbers[i] = _mm512_set1_epi32(static_cast<int>(words[i] ^ 0x80808080U));
    for (int v = 0; v < kVectors; ++v) {
      const __m512i channels = _mm512_loadu_si512(centres + v * kWords);
      for (int i = 0; i < kSlotsAtOnce; ++i) sums[v][i] = _mm512_dpbusd_epi32(sums[v][i], numbers[i], channels);
    }
  }
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  for (int v = 0; v < kVectors; ++v) {
    const int32_t place = first + v * kWords;
    const __m512 bias = _mm512_loadu_ps(biases + place);
    for (int i = 0; i < kSlotsAtOnce; ++i) {
      const __m512 product = _mm512_mul_ps(_mm512_cvtepi32_ps(sums[v][i]), _mm512_set1_ps(units[i]));
      best[i].offer(_mm512_sub_ps(product, bias), _mm512_add_epi32(_mm512_set1_epi32(place), lanes));
    }
  }
}

void nearest_centres(const centred::CentreSearch& search, const float* biases, const uint32_t* words,
                     const float* units, int32_t used, uint8_t* indices) {
  constexpr int kVectors = 4;
  const int32_t padded = search.padded_count();
  for (int32_t slot = 0; slot < used; slot += kSlotsAtOnce) {
    Best best[kSlotsAtOnce];
    for (Best& each : best) {
      each.score = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
      each.place = _mm512_setzero_si512();
    }
    int32_t first = 0;
    for (; first + kVectors * kWords <= padded; first += kVectors * kWords) {
      offer_centres<kVectors>(search, biases, words + slot, units + slot, first, best);
    }
    for (; first < padded; first += kWords) {
      offer_centres<1>(search, biases, words + slot, units + slot, first, best);
    }
    for (int32_t i = 0; i < std::min(kSlotsAtOnce, used - slot); ++i) indices[slot + i] = best[i].get();
  }
}

void next_rotation(const RotationOrder& order, const float* row, const float* step, float* out) {
  for (int32_t block = 0; block < order.pair_blocks(); ++block, row += 2 * kLanes, step += 2 * kLanes) {
    for (int32_t i = 0; i < kLanes; i += kWords) {
      const __m512 c = _mm512_loadu_ps(row + i);
      const __m512 s = _mm512_loadu_ps(row + kLanes + i);
      const __m512 step_c = _mm512_loadu_ps(step + i);
      const __m512 step_s = _mm512_loadu_ps(step + kLanes + i);
      _mm512_storeu_ps(out + i, _mm512_fmsub_ps(c, step_c, _mm512_mul_ps(s, step_s)));
      _mm512_storeu_ps(out + kLanes + i, _mm512_fmadd_ps(c, step_s, _mm512_mul_ps(s, step_c)));
    }
    out += 2 * kLanes;
  }
}

/// Four slots' vectors interleaved: a word of each in every four.
inline void store_four(const __m512i (&slots)[kTogether], int16_t* plane) {
  const __m512i low = _mm512_unpacklo_epi32(slots[0], slots[1]);
  const __m512i high = _mm512_unpackhi_epi32(slots[0], slots[1]);
  const __m512i other_low = _mm512_unpacklo_epi32(slots[2], slots[3]);
  const __m512i other_high = _mm512_unpackhi_epi32(slots[2], slots[3]);
  _mm512_store_si512(plane, _mm512_unpacklo_epi64(low, other_low));
  _mm512_store_si512(plane + kLanes, _mm512_unpackhi_epi64(low, other_low));
  _mm512_store_si512(plane + 2 * kLanes, _mm512_unpacklo_epi64(high, other_high));
  _mm512_store_si512(plane + 3 * kLanes, _mm512_unpackhi_epi64(high, other_high));
}

void put_centres(const RotatedCentres& centres, int32_t head, const uint8_t* indices, int16_t* plane) {
  const RotationOrder& order = centres.order;
  const int32_t rotated = order.slot_blocks();
  const int32_t vectors = order.vectors();
  const int16_t* of_head = centres.of_head(head);
  for (int32_t slot = 0; slot < kPageSlots; slot += kTogether) {
    const int16_t* rows[kTogether];
    for (int32_t i = 0; i < kTogether; ++i) {
      rows[i] = of_head + static_cast<ptrdiff_t>(indices[slot + i]) * vectors * kLanes;
    }
    for (int32_t block = 0; block < rotated; ++block, plane += 2 * kTogether * kLanes) {
      __m512i first[kTogether];
      __m512i second[kTogether];
      for (int32_t i = 0; i < kTogether; ++i) {
        const int16_t* rotation = centres.slot_rotations.data() + ((slot + i) * rotated + block) * 2 * kLanes;
        const __m512i x = _mm512_loadu_si512(rows[i] + block * 2 * kLanes);
        const __m512i y = _mm512_loadu_si512(rows[i] + (block * 2 + 1) * kLanes);
        const __m512i c = _mm512_loadu_si512(rotation);
        const __m512i s = _mm512_loadu_si512(rotation + kLanes);
        first[i] = _mm512_sub_epi16(_mm512_mulhrs_epi16(x, c), _mm512_mulhrs_epi16(y, s));
        second[i] = _mm512_add_epi16(_mm512_mulhrs_epi16(x, s), _mm512_mulhrs_epi16(y, c));
      }
      store_four(first, plane);
      store_four(second, plane + kTogether * kLanes);
    }
    for (int32_t vector = 2 * rotated; vector < vectors; ++vector, plane += kTogether * kLanes) {
      __m512i slots[kTogether];
      for (int32_t i = 0; i < kTogether; ++i) slots[i] = _mm512_loadu_si512(rows[i] + vector * kLanes);
      store_four(slots, plane);
    }
  }
}

inline __m512i pack(__m512 a, __m512 b) { return _mm512_packs_epi32(_mm512_cvtps_epi32(a), _mm512_cvtps_epi32(b)); }

/// Stores 32 values in the order of a plane's vectors.
inline void store_words(__m512i numbers, int16_t* out) {
  _mm512_store_si512(out, _mm512_shuffle_epi32(numbers, _MM_PERM_AAAA));
  _mm512_store_si512(out + kLanes, _mm512_shuffle_epi32(numbers, _MM_PERM_BBBB));
  _mm512_store_si512(out + 2 * kLanes, _mm512_shuffle_epi32(numbers, _MM_PERM_CCCC));
  _mm512_store_si512(out + 3 * kLanes, _mm512_shuffle_epi32(numbers, _MM_PERM_DDDD));
}

/// Rotates a query back by the first slot's position.
inline void rotate_query(const RotationOrder& order, const float* rotation, const float* q, int16_t* out) {
  for (int32_t block = 0; block < order.pair_blocks(); ++block, rotation += 2 * kLanes, q += 2 * kLanes) {
    __m512 x[2];
    __m512 y[2];
    for (int32_t i = 0; i < 2; ++i) {
      const __m512 c = _mm512_loadu_ps(rotation + i * kWords);
      const __m512 s = _mm512_loadu_ps(rotation + kLanes + i * kWords);
      const __m512 first = _mm512_loadu_ps(q + i * kWords);
      const __m512 second = _mm512_loadu_ps(q + kLanes + i * kWords);
      x[i] = _mm512_fmadd_ps(first, c, _mm512_mul_ps(second, s));
      y[i] = _mm512_fmsub_ps(second, c, _mm512_mul_ps(first, s));
    }
    store_words(pack(x[0], x[1]), out);
    store_words(pack(y[0], y[1]), out + kTogether * kLanes);
    out += 2 * kTogether * kLanes;
  }
  for (int32_t block = 0; block < order.rest_blocks(); ++block, q += kLanes, out += kTogether * kLanes) {
    store_words(pack(_mm512_loadu_ps(q), _mm512_loadu_ps(q + kWords)), out);
  }
}

/// Sums of four vectors' quarters, one per slot.
inline __m512i add_quarters(const __m512i (&sums)[kTogether]) {
  const __m512i first =
      _mm512_add_epi32(_mm512_shuffle_i32x4(sums[0], sums[1], 0x44), _mm512_shuffle_i32x4(sums[0], sums[1], 0xEE));
  const __m512i second =
      _mm512_add_epi32(_mm512_shuffle_i32x4(sums[2], sums[3], 0x44), _mm512_shuffle_i32x4(sums[2], sums[3], 0xEE));
  return _mm512_add_epi32(_mm512_shuffle_i32x4(first, second, 0x88), _mm512_shuffle_i32x4(first, second, 0xDD));
}

inline void add_to(float* scores, __m512i sums, float unit) {
  const __m512 before = _mm512_loadu_ps(scores);
  _mm512_storeu_ps(scores, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), _mm512_set1_ps(unit), before));
}

template <int kRows>
void add_rows(const RotationOrder& order, const int16_t* plane, const float* rotation, const float* q,
              const float* units, float* scores) {
  const int32_t steps = order.vectors() * kTogether;
  alignas(64) int16_t words[kRows][kMaxVectors * kTogether * kLanes];
  for (int r = 0; r < kRows; ++r) rotate_query(order, rotation, q + static_cast<size_t>(r) * order.numbers(), words[r]);
  for (int32_t slot = 0; slot < kPageSlots; slot += kWords) {
    __m512i sums[kRows][kTogether];
    for (int32_t part = 0; part < kTogether; ++part, plane += steps * kLanes) {
      __m512i sum[kRows];
      for (int r = 0; r < kRows; ++r) sum[r] = _mm512_setzero_si512();
      for (int32_t step = 0; step < steps; ++step) {
        const __m512i numbers = _mm512_load_si512(plane + step * kLanes);
        for (int r = 0; r < kRows; ++r) {
          sum[r] = _mm512_dpwssd_epi32(sum[r], numbers, _mm512_load_si512(words[r] + step * kLanes));
        }
      }
      for (int r = 0; r < kRows; ++r) sums[r][part] = sum[r];
    }
    for (int r = 0; r < kRows; ++r) add_to(scores + r * kTileSlots + slot, add_quarters(sums[r]), units[r]);
  }
}

void add_scores(const RotationOrder& order, const int16_t* plane, const float* rotation, int32_t rows, const float* q,
                const float* units, float* scores) {
  switch (rows) {
    case 1:
      return add_rows<1>(order, plane, rotation, q, units, scores);
    case 2:
      return add_rows<2>(order, plane, rotation, q, units, scores);
    case 3:
      return add_rows<3>(order, plane, rotation, q, units, scores);
    default:
      return add_rows<4>(order, plane, rotation, q, units, scores);
  }
}

/// Rotates a row's weights to the page: pairs rotated slot by slot become a word of two pairs' re and one of their im;
/// the others are summed.
inline float rotate_weights(const RotationOrder& order, const float* rotation, const OneCentreRow& row,
                            int32_t* words) {
  const float* weights = row.weights;
  __m512 rest = _mm512_setzero_ps();
  for (int32_t pair = 0; pair < order.pairs; pair += kWords) {
    const int32_t at = pair / kLanes * 2 * kLanes + pair % kLanes;
    const __m512 c = _mm512_loadu_ps(rotation + at);
    const __m512 s = _mm512_loadu_ps(rotation + kLanes + at);
    const __m512 re = _mm512_loadu_ps(weights + at);
    const __m512 im = _mm512_loadu_ps(weights + kLanes + at);
    const __m512 x = _mm512_fmsub_ps(re, c, _mm512_mul_ps(im, s));
    const int32_t rotated = std::clamp(order.slot_pairs - pair, 0, kWords);
    const auto others = static_cast<__mmask16>(0xFFFFU << static_cast<uint32_t>(rotated));
    const auto rotated_lanes = static_cast<__mmask16>(~others);
    rest = _mm512_mask_add_ps(rest, others, rest, x);
    if (rotated == 0) continue;
    const __m512 y = _mm512_fmadd_ps(re, s, _mm512_mul_ps(im, c));
    const __m512i low = _mm512_cvtps_epi32(_mm512_maskz_mov_ps(rotated_lanes, x));
    const __m512i high = _mm512_cvtps_epi32(_mm512_maskz_mov_ps(rotated_lanes, y));
    // Packing takes four pairs' re, then their im.
    _mm512_store_si512(words + pair, _mm512_shuffle_epi32(_mm512_packs_epi32(low, high), _MM_PERM_DBCA));
  }
  return _mm512_reduce_add_ps(rest) + row.rest;
}

/// Slots equally far from the middle of the page have equal cosines and opposite sines: a row's pairs sum to E − O in
/// the first half of the slots, and to E + O in the second, in reverse order.
template <int kRows>
void add_one_centre_rows(const RotatedCentres& centres, const float* rotation, const OneCentreRow* q, float* scores) {
  const RotationOrder& order = centres.order;
  alignas(64) int32_t words[kRows][kMaxTrainedDim / 2 + 2 * kWords];
  __m512 rest[kRows];
  __m512i even[kRows];
  __m512i odd[kRows];
  for (int r = 0; r < kRows; ++r) {
    rest[r] = _mm512_set1_ps(rotate_weights(order, rotation, q[r], words[r]));
    even[r] = odd[r] = _mm512_setzero_si512();
  }
  const int16_t* columns = centres.slot_columns.data();
  for (int32_t pair = 0; pair < order.slot_pairs; pair += 2, columns += 4 * kWords) {
    const __m512i cosines = _mm512_loadu_si512(columns);
    const __m512i sines = _mm512_loadu_si512(columns + 2 * kWords);
    for (int r = 0; r < kRows; ++r) {
      // The analyzer does not see that vector stores filled the words.
      // NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage)
      even[r] = _mm512_dpwssd_epi32(even[r], cosines, _mm512_set1_epi32(words[r][pair]));
      // NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage)
      odd[r] = _mm512_dpwssd_epi32(odd[r], sines, _mm512_set1_epi32(words[r][pair + 1]));
    }
  }
  const __m512i backwards = _mm512_setr_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  for (int r = 0; r < kRows; ++r) {
    const __m512i second = _mm512_permutexvar_epi32(backwards, _mm512_add_epi32(even[r], odd[r]));
    const __m512i sums[2] = {_mm512_sub_epi32(even[r], odd[r]), second};
    float* to = scores + r * kTileSlots;
    for (int i = 0; i < 2; ++i, to += kWords) {
      const __m512 before = _mm512_add_ps(_mm512_loadu_ps(to), rest[r]);
      _mm512_storeu_ps(to, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[i]), _mm512_set1_ps(q[r].unit), before));
    }
  }
}

void add_one_centre(const RotatedCentres& centres, const float* rotation, int32_t rows, const OneCentreRow* q,
                    float* scores) {
  switch (rows) {
    case 1:
      return add_one_centre_rows<1>(centres, rotation, q, scores);
    case 2:
      return add_one_centre_rows<2>(centres, rotation, q, scores);
    case 3:
      return add_one_centre_rows<3>(centres, rotation, q, scores);
    default:
      return add_one_centre_rows<4>(centres, rotation, q, scores);
  }
}

}  // namespace

void set_avx512vnni_centres(CentreKernels& kernels) {
  kernels.nearest = nearest_centres;
  kernels.next_rotation = next_rotation;
  kernels.put_centres = put_centres;
  kernels.add_scores = add_scores;
  kernels.add_one_centre = add_one_centre;
}

}  // namespace kvq::cpu

HWY_POP_ATTRIBUTES
