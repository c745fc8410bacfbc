// Kernels of FP16 pages: a word holds two reduction elements, so a vector of FP16 values covers half as many lanes,
// twice.
#if defined(KVQ_ATTEND_FLOAT16_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KVQ_ATTEND_FLOAT16_INL_H
#undef KVQ_ATTEND_FLOAT16_INL_H
#else
#define KVQ_ATTEND_FLOAT16_INL_H
#endif

#include "backend/cpu/attend/kernels.h"
#include "core/memory.h"

#include <hwy/highway.h>

#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using FloatTag = hn::ScalableTag<float>;
using HalfTag = hn::Rebind<hwy::float16_t, FloatTag>;
using FloatVector = hn::Vec<FloatTag>;

// Accumulators per row: with four rows they, the operands and a broadcast fill the register file.
#if HWY_TARGET == HWY_AVX3
inline constexpr int kPairVectors = 4;
#else
inline constexpr int kPairVectors = 2;
#endif

/// Two neighbouring floats in every pair of lanes.
HWY_INLINE FloatVector broadcast_pair(const float* pair) {
  uint64_t bits;
  std::memcpy(&bits, pair, sizeof(bits));
  const hn::Repartition<uint64_t, FloatTag> d64;
  return hn::BitCast(FloatTag(), hn::Set(d64, bits));
}

/// acc[r][a] += x[a] · pair[r] over FP16 values x; lane pairs are the two elements of a word.
template <int kRows, int kVectors>
HWY_INLINE void multiply_pairs(const hwy::float16_t* numbers, const hwy::float16_t* later, const float* pairs,
                               size_t pair_stride, FloatVector (&acc)[kRows][kVectors]) {
  const FloatTag d;
  const HalfTag dh;
  FloatVector operand[kVectors];
  for (size_t i = 0; i < static_cast<size_t>(kVectors) * hn::Lanes(d); i += kDataAlignment / 2) prefetch(later + i);
  for (int a = 0; a < kVectors; ++a) {
    operand[a] = hn::PromoteTo(d, hn::LoadU(dh, numbers + static_cast<size_t>(a) * hn::Lanes(d)));
  }
  for (int r = 0; r < kRows; ++r) {
    const FloatVector pair = broadcast_pair(pairs + static_cast<size_t>(r) * pair_stride);
    for (int a = 0; a < kVectors; ++a) acc[r][a] = hn::MulAdd(operand[a], pair, acc[r][a]);
  }
}

/// Adds the two elements of each word of two vectors: one lane per word.
HWY_INLINE FloatVector add_pairs(FloatVector first, FloatVector second) {
  const FloatTag d;
  return hn::Add(hn::ConcatEven(d, second, first), hn::ConcatOdd(d, second, first));
}

template <int kRows>
HWY_INLINE void float16_keys_page(int32_t head_dim, const SideData& keys, const float* q, float* scores) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  const size_t chunk = kPairVectors * lanes / 2;  // slots
  for (size_t slot = 0; slot < kPageSlots; slot += chunk) {
    FloatVector acc[kRows][kPairVectors];
    for (auto& row : acc) {
      for (auto& each : row) each = hn::Zero(d);
    }
    const auto* numbers = reinterpret_cast<const hwy::float16_t*>(keys.data) + 2 * slot;
    const auto* later = reinterpret_cast<const hwy::float16_t*>(keys.later) + 2 * slot;
    for (int32_t channel = 0; channel < head_dim; channel += 2, numbers += 2 * kPageSlots, later += 2 * kPageSlots) {
      multiply_pairs<kRows, kPairVectors>(numbers, later, q + channel, static_cast<size_t>(head_dim), acc);
    }
    for (size_t r = 0; r < kRows; ++r) {
      for (size_t a = 0; a < kPairVectors; a += 2) {
        hn::StoreU(add_pairs(acc[r][a], acc[r][a + 1]), d, scores + r * kTileSlots + slot + a / 2 * lanes);
      }
    }
  }
}

template <int kRows, int kVectors>
HWY_INLINE void float16_values_chunk(int32_t head_dim, size_t channel, const SideData* values, int32_t pages,
                                     const float* p, float* out) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  const auto width = static_cast<size_t>(padded_dim(head_dim));
  FloatVector acc[kRows][kVectors];
  for (auto& row : acc) {
    for (auto& each : row) each = hn::Zero(d);
  }
  for (int32_t page = 0; page < pages; ++page) {
    const auto* numbers = reinterpret_cast<const hwy::float16_t*>(values[page].data) + 2 * channel;
    const auto* later = reinterpret_cast<const hwy::float16_t*>(values[page].later) + 2 * channel;
    const float* weights = p + page * kPageSlots;
    for (int32_t slot = 0; slot < kPageSlots; slot += 2, numbers += 2 * width, later += 2 * width) {
      multiply_pairs<kRows, kVectors>(numbers, later, weights + slot, kTileSlots, acc);
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t a = 0; a < kVectors; a += 2) {
      float* target = out + r * width + channel + a / 2 * lanes;
      hn::StoreU(hn::Add(hn::LoadU(d, target), add_pairs(acc[r][a], acc[r][a + 1])), d, target);
    }
  }
}

template <int kRows>
HWY_INLINE void float16_values_rows(int32_t head_dim, const SideData* values, int32_t pages, const float* p,
                                    float* out) {
  const size_t lanes = hn::Lanes(FloatTag());
  const auto width = static_cast<size_t>(padded_dim(head_dim));
  size_t channel = 0;
  for (; channel + kPairVectors * lanes / 2 <= width; channel += kPairVectors * lanes / 2) {
    float16_values_chunk<kRows, kPairVectors>(head_dim, channel, values, pages, p, out);
  }
  for (; channel < width; channel += lanes) float16_values_chunk<kRows, 2>(head_dim, channel, values, pages, p, out);
}

template <int kRows>
HWY_INLINE void float16_keys_rows(int32_t head_dim, const SideData* keys, int32_t pages, const float* q,
                                  float* scores) {
  for (int32_t page = 0; page < pages; ++page) {
    float16_keys_page<kRows>(head_dim, keys[page], q, scores + page * kPageSlots);
  }
}

inline void float16_keys(const SideShape& shape, const SideData* keys, int32_t pages, int32_t rows, const QueryRows& q,
                         float* scores) {
  if (rows == 1) {
    float16_keys_rows<1>(shape.head_dim, keys, pages, q.floats, scores);
  } else if (rows == 2) {
    float16_keys_rows<2>(shape.head_dim, keys, pages, q.floats, scores);
  } else {
    float16_keys_rows<4>(shape.head_dim, keys, pages, q.floats, scores);
  }
}

inline void float16_values(const SideShape& shape, const SideData* values, int32_t pages, int32_t rows, const float* p,
                           float* out) {
  if (rows == 1) {
    float16_values_rows<1>(shape.head_dim, values, pages, p, out);
  } else if (rows == 2) {
    float16_values_rows<2>(shape.head_dim, values, pages, p, out);
  } else {
    float16_values_rows<4>(shape.head_dim, values, pages, p, out);
  }
}

}  // namespace kvq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
