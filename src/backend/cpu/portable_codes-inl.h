// Pages stored with codes: sums of centres, and sums of probabilities by bits.
#if defined(KVQ_PORTABLE_CODES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KVQ_PORTABLE_CODES_INL_H
#undef KVQ_PORTABLE_CODES_INL_H
#else
#define KVQ_PORTABLE_CODES_INL_H
#endif

#include "backend/cpu/kernels.h"
#include "codebooks/key_encoder.h"
#include "codebooks/key_kernels.h"

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Four vectors of pairs of every slot from pair `begin`.
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
HWY_INLINE void sum_bits(D d, const uint32_t* words, int32_t lanes, int32_t rows, const float* weights, float* sums,
                         size_t stride) {
  if (rows == 1) {
    add_bits<1>(d, words, lanes, weights, sums, stride);
  } else if (rows == 2) {
    add_bits<2>(d, words, lanes, weights, sums, stride);
  } else {
    add_bits<4>(d, words, lanes, weights, sums, stride);
  }
}

inline void sum_bits(const uint32_t* words, int32_t lanes, int32_t rows, const float* weights, float* sums,
                     size_t stride) {
  // Lanes are a multiple of 8; what follows them may be no memory.
  if (lanes % 16 == 0) {
    sum_bits(hn::CappedTag<float, 16>(), words, lanes, rows, weights, sums, stride);
  } else {
    sum_bits(hn::CappedTag<float, 8>(), words, lanes, rows, weights, sums, stride);
  }
}

}  // namespace kvq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
