// Scores of CommVQ keys from tables of a query's products with the codes (CommVQ eq. 25: RoPE commutes).
#if defined(KVQ_COMMVQ_PRODUCTS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KVQ_COMMVQ_PRODUCTS_INL_H
#undef KVQ_COMMVQ_PRODUCTS_INL_H
#else
#define KVQ_COMMVQ_PRODUCTS_INL_H
#endif

#include "backend/cpu/attend/commvq/kernels.h"
#include "formats/commvq/key_encoder.h"
#include "formats/commvq/key_kernels.h"

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

inline void multiply_codes(const KeyEncoder& encoder, const float* query, const float* inverse_units,
                           int16_t* products) {
  const hn::CappedTag<float, keys::kLanes> d;
  const hn::Rebind<int16_t, decltype(d)> d16;
  const size_t lanes = hn::Lanes(d);
  const auto plane = static_cast<size_t>(keys::padded(encoder.group()));
  const float* code = encoder.code(0, 0);
  for (int32_t row = 0; row < encoder.stages() * encoder.codes(); ++row, code += 2 * plane, products += 2 * plane) {
    for (size_t pair = 0; pair < plane; pair += lanes) {
      const auto inverse = hn::LoadU(d, inverse_units + pair);
      const auto x = hn::Mul(inverse, hn::LoadU(d, query + pair));
      const auto y = hn::Mul(inverse, hn::LoadU(d, query + plane + pair));
      const auto re = hn::LoadU(d, code + pair);
      const auto im = hn::LoadU(d, code + plane + pair);
      const auto real = hn::MulAdd(x, re, hn::Mul(y, im));
      const auto imaginary = hn::MulSub(x, im, hn::Mul(y, re));
      hn::StoreU(hn::DemoteTo(d16, hn::NearestInt(real)), d16, products + pair);
      hn::StoreU(hn::DemoteTo(d16, hn::NearestInt(imaginary)), d16, products + plane + pair);
    }
  }
}

template <class D, class V16>
HWY_INLINE hn::Vec<D> lower_floats(D d, V16 integers) {
  const hn::Rebind<int16_t, D> half;
  return hn::ConvertTo(d, hn::PromoteTo(hn::RebindToSigned<D>(), hn::LowerHalf(half, integers)));
}

template <class D, class V16>
HWY_INLINE hn::Vec<D> upper_floats(D d, V16 integers) {
  const hn::Rebind<int16_t, D> half;
  return hn::ConvertTo(d, hn::PromoteTo(hn::RebindToSigned<D>(), hn::UpperHalf(half, integers)));
}

/// Re Σ weight · e^{iθ} · (real + i · imaginary) over a vector of pairs.
template <class D>
HWY_INLINE hn::Vec<D> rotated_products(D d, hn::Vec<D> real, hn::Vec<D> imaginary, const float* rotation,
                                       const float* weight, size_t plane, hn::Vec<D> sum) {
  const auto cosine = hn::LoadU(d, rotation);
  const auto sine = hn::LoadU(d, rotation + plane);
  const auto x = hn::MulSub(real, cosine, hn::Mul(imaginary, sine));
  const auto y = hn::MulAdd(real, sine, hn::Mul(imaginary, cosine));
  return hn::MulAdd(x, hn::LoadU(d, weight), hn::NegMulAdd(y, hn::LoadU(d, weight + plane), sum));
}

/// Sums `kVectors` vectors of pairs, from pair `begin`.
template <int kVectors, class D16>
HWY_INLINE void sum_pairs(D16 d16, const ProductTable& table, const uint8_t* indices, size_t begin,
                          const float* rotations, const float* weights, float* scores) {
  const hn::RepartitionToWide<D16> d32;
  const hn::RebindToFloat<decltype(d32)> d;
  const auto plane = static_cast<size_t>(table.plane);
  const size_t lanes = hn::Lanes(d16);
  const size_t stage_size = static_cast<size_t>(table.codes) * 2 * plane;
  for (int32_t slot = 0; slot < kPageSlots; ++slot, rotations += 2 * plane) {
    hn::Vec<D16> real[kVectors];
    hn::Vec<D16> imaginary[kVectors];
    for (int i = 0; i < kVectors; ++i) real[i] = imaginary[i] = hn::Zero(d16);
    const int16_t* products = table.products + begin;
    const uint8_t* index = indices + slot;
    for (int32_t stage = 0; stage < table.stages; ++stage, products += stage_size, index += 2 * kPageSlots) {
      const int16_t* a = products + index[0] * 2 * plane;
      const int16_t* b = products + index[kPageSlots] * 2 * plane;
      for (int i = 0; i < kVectors; ++i) {
        const size_t at = static_cast<size_t>(i) * lanes;
        real[i] = hn::Add(real[i], hn::Sub(hn::LoadU(d16, a + at), hn::LoadU(d16, b + plane + at)));
        imaginary[i] = hn::Add(imaginary[i], hn::Add(hn::LoadU(d16, a + plane + at), hn::LoadU(d16, b + at)));
      }
    }
    auto sum = hn::Zero(d);
    for (int i = 0; i < kVectors; ++i) {
      const size_t low = begin + static_cast<size_t>(i) * lanes;
      const size_t high = low + lanes / 2;
      sum = rotated_products(d, lower_floats(d, real[i]), lower_floats(d, imaginary[i]), rotations + low, weights + low,
                             plane, sum);
      sum = rotated_products(d, upper_floats(d, real[i]), upper_floats(d, imaginary[i]), rotations + high,
                             weights + high, plane, sum);
    }
    scores[slot] += hn::GetLane(hn::SumOfLanes(d, sum));
  }
}

template <class D16>
HWY_INLINE void sum_all_pairs(D16 d16, const ProductTable& table, const uint8_t* indices, const float* rotations,
                              const float* weights, float* scores) {
  const size_t lanes = hn::Lanes(d16);
  const auto plane = static_cast<size_t>(table.plane);
  size_t begin = 0;
  for (; begin + 2 * lanes <= plane; begin += 2 * lanes) {
    sum_pairs<2>(d16, table, indices, begin, rotations, weights, scores);
  }
  for (; begin < plane; begin += lanes) sum_pairs<1>(d16, table, indices, begin, rotations, weights, scores);
}

inline void sum_products(const ProductTable& table, const uint8_t* indices, const float* rotations,
                         const float* weights, float* scores) {
  if (table.plane % 32 == 0) {
    sum_all_pairs(hn::CappedTag<int16_t, 32>(), table, indices, rotations, weights, scores);
  } else {
    sum_all_pairs(hn::CappedTag<int16_t, 16>(), table, indices, rotations, weights, scores);
  }
}

}  // namespace kvq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
