// Compiled once per Highway target: this file includes itself through foreach_target.h. No product is fused with a sum,
// neither here nor by the compiler (-ffp-contract=off in CMakeLists.txt), because some targets cannot.
#include "formats/commvq/value_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "formats/commvq/value_kernels.cpp"
#include <hwy/foreach_target.h>  // must precede highway.h

#include <hwy/highway.h>

#include "core/target_tables.h"

HWY_BEFORE_NAMESPACE();
namespace kvq::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using FloatTag = hn::ScalableTag<float>;
using FloatVector = hn::Vec<FloatTag>;

// Rows and vectors of a tile of sums: with a vector of columns and a product they fill most of the register file.
#if HWY_TARGET == HWY_AVX3
inline constexpr size_t kTileRows = 8;
#else
inline constexpr size_t kTileRows = 4;
#endif
inline constexpr size_t kTileVectors = 2;

template <size_t kRows>
HWY_INLINE void multiply_tile(const MatrixView& matrix, size_t first_row, size_t depth, const float* columns,
                              float* out) {
  const FloatTag d;
  FloatVector sums[kRows][kTileVectors];
  for (auto& row : sums) {
    for (auto& sum : row) sum = hn::Zero(d);
  }
  const float* element = matrix.data + first_row * matrix.row_stride;
  for (size_t k = 0; k < depth; ++k, columns += kValueBlock, element += matrix.stride) {
    FloatVector column[kTileVectors];
    for (size_t i = 0; i < kTileVectors; ++i) column[i] = hn::LoadU(d, columns + i * hn::Lanes(d));
    for (size_t r = 0; r < kRows; ++r) {
      const FloatVector factor = hn::Set(d, element[r * matrix.row_stride]);
      for (size_t i = 0; i < kTileVectors; ++i) sums[r][i] = hn::Add(sums[r][i], hn::Mul(factor, column[i]));
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t i = 0; i < kTileVectors; ++i) {
      hn::StoreU(sums[r][i], d, out + r * kValueBlock + i * hn::Lanes(d));
    }
  }
}

void multiply(const MatrixView& matrix, size_t rows, size_t depth, const float* columns, float* out) {
  size_t r = 0;
  const size_t tile = kTileVectors * hn::Lanes(FloatTag());
  for (; r + kTileRows <= rows; r += kTileRows) {
    for (size_t i = 0; i < kValueBlock; i += tile) {
      multiply_tile<kTileRows>(matrix, r, depth, columns + i, out + r * kValueBlock + i);
    }
  }
  for (; r < rows; ++r) {
    for (size_t i = 0; i < kValueBlock; i += tile) {
      multiply_tile<1>(matrix, r, depth, columns + i, out + r * kValueBlock + i);
    }
  }
}

Flip best_flip(const FlipSearch& search, const float* gram_row, float change, float inverse_scale) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  const size_t lanes = hn::Lanes(d);
  const FloatVector factor = hn::Set(d, change);
  const FloatVector scale = hn::Set(d, inverse_scale);
  FloatVector best = hn::Set(d, -1e30F);
  auto best_bit = hn::Zero(di);
  auto bit = hn::Iota(di, 0);
  const auto next = hn::Set(di, static_cast<int32_t>(lanes));
  for (size_t n = 0; n < search.bits; n += lanes) {
    const FloatVector decoded = hn::Add(hn::LoadU(d, search.decoded + n), hn::Mul(factor, hn::LoadU(d, gram_row + n)));
    hn::StoreU(decoded, d, search.decoded + n);
    const FloatVector missing = hn::Sub(hn::Mul(scale, hn::LoadU(d, search.wanted + n)), decoded);
    const FloatVector gain =
        hn::Sub(hn::Mul(hn::LoadU(d, search.step + n), missing), hn::LoadU(d, search.half_norm + n));
    const auto better = hn::Gt(gain, best);
    best = hn::IfThenElse(better, gain, best);
    best_bit = hn::IfThenElse(hn::RebindMask(di, better), bit, best_bit);
    bit = hn::Add(bit, next);
  }
  constexpr size_t kMaxLanes = hn::MaxLanes(FloatTag());
  float gains[kMaxLanes];
  int32_t bits[kMaxLanes];
  hn::StoreU(best, d, gains);
  hn::StoreU(best_bit, di, bits);
  Flip result{gains[0], bits[0]};
  for (size_t i = 1; i < lanes; ++i) {
    if (gains[i] > result.gain || (gains[i] == result.gain && bits[i] < result.bit)) result = {gains[i], bits[i]};
  }
  return result;
}

const ValueKernels& value_table() {
  static constexpr ValueKernels kTable = {isa_name(HWY_TARGET), multiply, best_flip};
  return kTable;
}

}  // namespace kvq::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvq {
std::span<const ValueKernels* const> value_kernels() {
  static const RunnableTables<ValueKernels> tables(KVQ_TARGET_TABLES(value_table));
  return tables.all();
}

}  // namespace kvq
#endif
