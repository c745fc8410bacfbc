// Input and output conversions of products with packed matrices. Nothing is fused: every instruction set gives the same
// numbers.
#if defined(KVQ_LINEAR_ACTIVATIONS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KVQ_LINEAR_ACTIVATIONS_INL_H
#undef KVQ_LINEAR_ACTIVATIONS_INL_H
#else
#define KVQ_LINEAR_ACTIVATIONS_INL_H
#endif

#include "backend/cpu/append/float16-inl.h"
#include "backend/cpu/append/hadamard-inl.h"
#include "backend/cpu/linear/kernels.h"
#include "core/tensor.h"
#include "weights/rotation.h"

#include <hwy/highway.h>

#include <algorithm>
#include <cstring>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using RowTag = hn::ScalableTag<float>;

/// A vector of a row from input `i`.
HWY_INLINE hn::Vec<RowTag> load_activations(const ActivationRow& row, size_t i) {
  const RowTag d;
  const std::byte* source = row.x + i * dtype_bytes(row.dtype);
  if (row.dtype == KVQ_F32) {
    const hn::Repartition<uint8_t, RowTag> bytes;
    return hn::BitCast(d, hn::LoadU(bytes, reinterpret_cast<const uint8_t*>(source)));
  }
  HWY_ALIGN uint16_t bits[hn::MaxLanes(RowTag())];
  std::memcpy(bits, source, hn::Lanes(d) * sizeof(uint16_t));
  if (row.dtype == KVQ_F16) return from_half(d, bits);
  const hn::Rebind<uint16_t, RowTag> d16;
  const hn::Rebind<uint32_t, RowTag> du;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::Load(d16, bits))));
}

HWY_INLINE void load_with_signs(const ActivationRow& row, const uint8_t* signs, float* out) {
  const RowTag d;
  const hn::RebindToUnsigned<RowTag> du;
  const size_t lanes = hn::Lanes(d);
  const auto to_sign = hn::Sub(hn::Set(du, 31U), hn::Iota(du, 0));
  for (size_t i = 0; i < static_cast<size_t>(row.in); i += lanes) {
    uint32_t bits = signs[i / 8];
    if (lanes > 8) bits |= static_cast<uint32_t>(signs[i / 8 + 1]) << 8U;
    const auto sign = hn::Shl(hn::Set(du, bits >> (i % 8)), to_sign);
    hn::Store(hn::Xor(load_activations(row, i), hn::BitCast(d, hn::And(sign, hn::Set(du, 0x80000000U)))), d, out + i);
  }
}

inline void rotate_row(float* x, int32_t in) {
  const int32_t together = weights::rotated_together(in);
  const int32_t block = hadamard_block(together);
  for (int32_t begin = 0; begin < together; begin += block) hadamard_rows(x + begin, 1, block, 0);
  if (together < in) hadamard_rows(x + together, 1, in - together, 0);
}

/// Bits of the largest magnitude; as integers they are ordered, and values that are not finite come last.
HWY_INLINE uint32_t largest_bits(const float* x, int32_t n) {
  const hn::RebindToSigned<RowTag> di;
  auto largest = hn::Zero(di);
  for (int32_t i = 0; i < n; i += static_cast<int32_t>(hn::Lanes(di))) {
    const auto bits = hn::Load(di, reinterpret_cast<const int32_t*>(x + i));
    largest = hn::Max(largest, hn::And(bits, hn::Set(di, 0x7FFFFFFF)));
  }
  return static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(di, largest)));
}

/// Integers nearest to x / scale, ties to even.
HWY_INLINE void round_block(const float* x, int32_t n, float scale, int8_t* out) {
  const RowTag d;
  const hn::RebindToSigned<RowTag> di;
  const hn::Rebind<int8_t, RowTag> d8;
  const auto to_low_bits = hn::Set(d, 12582912.0F);  // 1.5 · 2^23
  for (int32_t i = 0; i < n; i += static_cast<int32_t>(hn::Lanes(d))) {
    // Above 127 only if the scale itself was rounded because it is tiny.
    const auto ratio =
        hn::Max(hn::Min(hn::Div(hn::Load(d, x + i), hn::Set(d, scale)), hn::Set(d, 127.0F)), hn::Set(d, -127.0F));
    const auto integer = hn::Sub(hn::BitCast(di, hn::Add(ratio, to_low_bits)), hn::BitCast(di, to_low_bits));
    hn::StoreU(hn::DemoteTo(d8, integer), d8, out + i);
  }
}

HWY_INLINE int32_t sum_of(const int8_t* integers, int32_t n) {
  int32_t sum = 0;
  for (int32_t i = 0; i < n; ++i) sum += integers[i];
  return sum;
}

inline void round_row(const ActivationRow& row, const uint8_t* signs, float* work, const ActivationGroup& group,
                      int32_t index) {
  const auto rows = static_cast<size_t>(group.rows);
  const auto place = static_cast<size_t>(index);
  load_with_signs(row, signs, work);
  rotate_row(work, row.in);
  HWY_ALIGN int8_t integers[weights::kActivationBlock];
  for (int32_t block = 0; block < activation_blocks(row.in); ++block) {
    const int32_t first = block * weights::kActivationBlock;
    const int32_t n = std::min(weights::kActivationBlock, row.in - first);
    const uint32_t bits = largest_bits(work + first, n);
    const bool finite = bits < 0x7F800000U;
    float largest = 0.0F;
    std::memcpy(&largest, &bits, sizeof(largest));
    const float scale = finite ? largest / 127.0F : std::numeric_limits<float>::quiet_NaN();
    if (finite && scale > 0.0F) {
      round_block(work + first, n, scale, integers);
    } else {
      std::memset(integers, 0, sizeof(integers));
    }
    const int32_t lower = std::clamp(row.in / 2 - first, 0, n);
    const int32_t sums[kHalves] = {sum_of(integers, lower), sum_of(integers + lower, n - lower), sum_of(integers, n)};
    const size_t at = static_cast<size_t>(block) * rows + place;
    group.scales[at] = scale;
    for (size_t half = 0; half < kHalves; ++half) group.sums[half * group.block_numbers() + at] = sums[half];
    for (int32_t i = 0; i < n; i += weights::kInputMultiple) {
      std::memcpy(group.quads + 4 * group.quad_at(first + i, index), integers + i, weights::kInputMultiple);
    }
  }
}

/// A row with a value that is not finite becomes NaN: infinity times a weight would be infinite.
inline void widen_row(const ActivationRow& row, const FloatGroup& group, int32_t index) {
  const RowTag d;
  const hn::RebindToSigned<RowTag> di;
  const size_t lanes = hn::Lanes(d);
  const auto inputs = static_cast<size_t>(row.in);
  const auto rows = static_cast<size_t>(group.rows);
  float* x = group.x + index;
  HWY_ALIGN float values[hn::MaxLanes(RowTag())];
  auto largest = hn::Zero(di);  // magnitude bits, as in largest_bits()
  for (size_t i = 0; i < inputs; i += lanes) {
    const auto loaded = load_activations(row, i);
    largest = hn::Max(largest, hn::BitCast(di, hn::Abs(loaded)));
    hn::Store(loaded, d, values);
    for (size_t lane = 0; lane < lanes; ++lane) x[(i + lane) * rows] = values[lane];
  }
  if (hn::GetLane(hn::MaxOfLanes(di, largest)) < 0x7F800000) return;
  for (size_t i = 0; i < inputs; ++i) x[i * rows] = std::numeric_limits<float>::quiet_NaN();
}

inline void store_linear(const float* sums, int32_t n, const LinearOutput& output) {
  const RowTag d;
  const auto lanes = static_cast<int32_t>(hn::Lanes(d));
  const auto rows = static_cast<size_t>(output.rows);
  HWY_ALIGN uint16_t scales[weights::kTileRows] = {};
  HWY_ALIGN float factors[weights::kTileRows] = {};
  HWY_ALIGN float bias[weights::kTileRows] = {};
  HWY_ALIGN float y[weights::kTileRows];
  if (output.row_scales != nullptr) std::memcpy(scales, output.row_scales, rows * sizeof(uint16_t));
  if (output.bias != nullptr) std::memcpy(bias, output.bias, rows * sizeof(float));
  for (int32_t r = 0; r < weights::kTileRows; r += lanes) {
    const auto scaled = hn::Mul(hn::Set(d, output.scale), from_half(d, scales + r));
    hn::Store(output.row_scales != nullptr ? scaled : hn::Set(d, 1.0F), d, factors + r);
  }
  for (int32_t i = 0; i < n; ++i) {
    for (int32_t r = 0; r < weights::kTileRows; r += lanes) {
      auto value = hn::Mul(hn::LoadU(d, sums + i * weights::kTileRows + r), hn::Load(d, factors + r));
      if (output.bias != nullptr) value = hn::Add(value, hn::Load(d, bias + r));
      hn::Store(value, d, y + r);
    }
    write_floats(y, output.rows, output.y + static_cast<size_t>(i) * output.stride, output.dtype, 0);
  }
}

}  // namespace kvq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
