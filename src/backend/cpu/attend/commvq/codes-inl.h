// Kernels on CommVQ codes: sums of centres, sums of probabilities by bit, and their decoding.
#if defined(KVQ_COMMVQ_CODES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KVQ_COMMVQ_CODES_INL_H
#undef KVQ_COMMVQ_CODES_INL_H
#else
#define KVQ_COMMVQ_CODES_INL_H
#endif

#include "backend/cpu/attend/commvq/kernels.h"
#include "core/float16.h"
#include "formats/commvq/key_encoder.h"
#include "formats/commvq/key_kernels.h"

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Sums four vectors of pairs, from pair `begin`, for every slot.
template <class D, int kVectors>
HWY_INLINE void add_centres(D d, const KeyEncoder& encoder, const uint8_t* indices, size_t begin, size_t plane,
                            float* rows, size_t stride) {
  const size_t lanes = hn::Lanes(d);
  for (int32_t slot = 0; slot < kPageSlots; ++slot, rows += stride) {
    hn::Vec<D> real[kVectors];
    hn::Vec<D> imaginary[kVectors];
    for (int i = 0; i < kVectors; ++i) real[i] = imaginary[i] = hn::Zero(d);
    for (int32_t stage = 0; stage < encoder.stages(); ++stage) {
      const uint8_t* of_stage = indices + 2 * kPageSlots * stage + slot;
      const float* a = encoder.code(stage, of_stage[0]) + begin;
      const float* b = encoder.code(stage, of_stage[kPageSlots]) + begin;
      for (int i = 0; i < kVectors; ++i) {
        const size_t at = static_cast<size_t>(i) * lanes;
        real[i] = hn::Add(real[i], hn::Sub(hn::LoadU(d, a + at), hn::LoadU(d, b + plane + at)));
        imaginary[i] = hn::Add(imaginary[i], hn::Add(hn::LoadU(d, a + plane + at), hn::LoadU(d, b + at)));
      }
    }
    for (int i = 0; i < kVectors; ++i) {
      hn::StoreU(real[i], d, rows + begin + static_cast<size_t>(i) * lanes);
      hn::StoreU(imaginary[i], d, rows + plane + begin + static_cast<size_t>(i) * lanes);
    }
  }
}

inline void sum_centres(const KeyEncoder& encoder, const uint8_t* indices, float* rows) {
  const hn::CappedTag<float, keys::kLanes> d;
  const size_t lanes = hn::Lanes(d);
  const auto plane = static_cast<size_t>(keys::padded(encoder.group()));
  const size_t stride = keys::vector_floats(encoder.group());
  size_t begin = 0;
  for (; begin + 4 * lanes <= plane; begin += 4 * lanes) {
    add_centres<decltype(d), 4>(d, encoder, indices, begin, plane, rows, stride);
  }
  for (; begin < plane; begin += lanes) {
    add_centres<decltype(d), 1>(d, encoder, indices, begin, plane, rows, stride);
  }
}

template <int kRows, class D>
HWY_INLINE void add_bits(D d, const uint32_t* words, int32_t lanes, const float* weights, float* sums, size_t stride) {
  const hn::RebindToUnsigned<D> du;
  const auto step = static_cast<int32_t>(hn::Lanes(d));
  for (int32_t lane = 0; lane < lanes; lane += step) {
    const auto word = hn::LoadU(du, words + lane);
    hn::Vec<D> sum[kRows];
    for (int r = 0; r < kRows; ++r) sum[r] = hn::LoadU(d, sums + static_cast<size_t>(r) * stride + lane);
    for (int32_t slot = 0; slot < kPageSlots; ++slot) {
      const auto bit = hn::Set(du, 1U << static_cast<uint32_t>(8 * (slot % 4) + slot / 4));
      const auto is_set = hn::RebindMask(d, hn::TestBit(word, bit));
      for (int r = 0; r < kRows; ++r) {
        const auto weight = hn::Set(d, weights[r * kPageSlots + slot]);
        sum[r] = hn::Add(sum[r], hn::IfThenElseZero(is_set, weight));
      }
    }
    for (int r = 0; r < kRows; ++r) hn::StoreU(sum[r], d, sums + static_cast<size_t>(r) * stride + lane);
  }
}

template <class D>
HWY_INLINE void add_page(D d, const BitPlanes& planes, int32_t page, int32_t rows, const float* weights, float* sums,
                         size_t stride) {
  for (int32_t part = 0; part < planes.parts; ++part, sums += planes.lanes) {
    const auto* words = reinterpret_cast<const uint32_t*>(planes.sides.at(planes.first_head + part, page));
    if (rows == 1) {
      add_bits<1>(d, words, planes.lanes, weights, sums, stride);
    } else if (rows == 2) {
      add_bits<2>(d, words, planes.lanes, weights, sums, stride);
    } else {
      add_bits<4>(d, words, planes.lanes, weights, sums, stride);
    }
  }
}

inline void sum_bits(const BitPlanes& planes, int32_t rows, const float* p, float* sums, size_t stride, size_t total) {
  for (int32_t page = 0; page < planes.pages; ++page, p += kPageSlots) {
    float weights[kBlockRows * kPageSlots] = {};
    for (int32_t slot = 0; slot < kPageSlots; ++slot) {
      const float scale = from_float16(planes.scales[page * kPageSlots + slot]);
      for (int32_t r = 0; r < rows; ++r) {
        const float weight = p[r * kTileSlots + slot] * scale;
        weights[r * kPageSlots + slot] = weight;
        sums[static_cast<size_t>(r) * stride + total] += weight;
      }
    }
    // Lanes are a multiple of 8; memory may end behind them.
    if (planes.lanes % 16 == 0) {
      add_page(hn::CappedTag<float, 16>(), planes, page, rows, weights, sums, stride);
    } else {
      add_page(hn::CappedTag<float, 8>(), planes, page, rows, weights, sums, stride);
    }
  }
}

/// Rows may be too far apart for the hardware prefetcher.
constexpr size_t kPrefetchedRows = 16;

/// Multiplies `kVectors` vectors of columns: a row on the right is read once for all rows on the left.
template <int kRows, int kVectors, class D>
HWY_INLINE void multiply_columns(D d, const float* right, size_t right_stride, int32_t inner, const float* left,
                                 size_t left_stride, float* out) {
  const size_t lanes = hn::Lanes(d);
  hn::Vec<D> total[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kVectors; ++i)
      total[r][i] = hn::LoadU(d, out + r * kMaxHeadDim + static_cast<size_t>(i) * lanes);
  }
  for (int32_t j = 0; j < inner; ++j, right += right_stride) {
    hn::Vec<D> row[kVectors];
    for (int i = 0; i < kVectors; ++i) {
      row[i] = hn::LoadU(d, right + static_cast<size_t>(i) * lanes);
      prefetch(right + kPrefetchedRows * right_stride + static_cast<size_t>(i) * lanes);
    }
    for (int r = 0; r < kRows; ++r) {
      const auto factor = hn::Set(d, left[static_cast<size_t>(r) * left_stride + static_cast<size_t>(j)]);
      for (int i = 0; i < kVectors; ++i) total[r][i] = hn::MulAdd(factor, row[i], total[r][i]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kVectors; ++i)
      hn::StoreU(total[r][i], d, out + r * kMaxHeadDim + static_cast<size_t>(i) * lanes);
  }
}

template <int kRows>
HWY_INLINE void multiply_rows(const float* right, size_t right_stride, int32_t inner, int32_t columns,
                              const float* left, size_t left_stride, float* out) {
  const hn::CappedTag<float, 16> d;
  const hn::CappedTag<float, 1> one;
  const auto step = static_cast<int32_t>(hn::Lanes(d));
  int32_t i = 0;
  for (; i + 4 * step <= columns; i += 4 * step) {
    multiply_columns<kRows, 4>(d, right + i, right_stride, inner, left, left_stride, out + i);
  }
  for (; i + step <= columns; i += step) {
    multiply_columns<kRows, 1>(d, right + i, right_stride, inner, left, left_stride, out + i);
  }
  // The last row on the right may end at its last column: nothing is read beyond it.
  for (; i < columns; ++i) {
    multiply_columns<kRows, 1>(one, right + i, right_stride, inner, left, left_stride, out + i);
  }
}

inline void multiply(const float* right, size_t right_stride, int32_t inner, int32_t columns, int32_t rows,
                     const float* left, size_t left_stride, float* out) {
  if (rows == 1) {
    multiply_rows<1>(right, right_stride, inner, columns, left, left_stride, out);
  } else if (rows == 2) {
    multiply_rows<2>(right, right_stride, inner, columns, left, left_stride, out);
  } else {
    multiply_rows<4>(right, right_stride, inner, columns, left, left_stride, out);
  }
}

}  // namespace kvq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
