// Products with packed matrices for targets without byte dot products: tiles are decoded to bytes and multiplied as
// words.
#if defined(KVQ_LINEAR_LINEAR_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KVQ_LINEAR_LINEAR_INL_H
#undef KVQ_LINEAR_LINEAR_INL_H
#else
#define KVQ_LINEAR_LINEAR_INL_H
#endif

#include "backend/cpu/linear/decode-inl.h"
#include "backend/cpu/linear/kernels.h"
#include "backend/cpu/vectors.h"

#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using SumTag = hn::CappedTag<int32_t, weights::kTileRows>;
using WordTag = hn::Repartition<int16_t, SumTag>;
inline constexpr size_t kRowVectors = weights::kTileRows / hn::MaxLanes(SumTag());

/// sum[i] += a[2i] · b[2i] + a[2i + 1] · b[2i + 1]; a is unsigned bytes, b signed.
HWY_INLINE hn::Vec<SumTag> add_products(hn::Vec<WordTag> a, hn::Vec<WordTag> b, hn::Vec<SumTag> sum) {
  const SumTag d;
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4
  auto unused = hn::Zero(d);  // other instruction sets keep sums of other products here
  return hn::ReorderWidenMulAccumulate(d, a, b, sum, unused);
#else
  const auto products = hn::BitCast(d, hn::Mul(a, b));  // below 2^15
  const auto even = hn::ShiftRight<16>(hn::ShiftLeft<16>(products));
  return hn::Add(sum, hn::Add(even, hn::ShiftRight<16>(products)));
#endif
}

/// Four words of a row's activations in every pair of lanes.
HWY_INLINE hn::Vec<WordTag> broadcast_words(const std::byte* words) {
  int32_t bits = 0;
  std::memcpy(&bits, words, sizeof(bits));
  return hn::BitCast(WordTag(), hn::Set(SumTag(), bits));
}

/// Adds a block to the sums of one panel: `kRows` rows of one group, starting with `first`.
template <int kRows>
HWY_INLINE void multiply_block(const uint8_t* levels, const LinearSegment& segment, int32_t column, int32_t columns,
                               const ActivationGroup& group, int32_t first, float* sums) {
  const SumTag d;
  const hn::RebindToFloat<SumTag> df;
  const WordTag dw;
  const hn::Repartition<uint16_t, SumTag> du;
  hn::Vec<SumTag> acc[kRows][kRowVectors];
  for (auto& row : acc) {
    for (auto& each : row) each = hn::Zero(d);
  }
  const auto rows = static_cast<size_t>(group.rows);
  for (int32_t i = column; i < column + columns; i += 4, levels += 4 * weights::kTileRows) {
    const std::byte* x = group.quads + group.quad_at(i, first) * 8;
    hn::Vec<WordTag> even[kRowVectors];
    hn::Vec<WordTag> odd[kRowVectors];
    for (size_t a = 0; a < kRowVectors; ++a) {
      const auto bytes = hn::LoadU(du, reinterpret_cast<const uint16_t*>(levels) + a * hn::Lanes(du));
      even[a] = hn::BitCast(dw, hn::And(bytes, hn::Set(du, uint16_t{0xFF})));
      odd[a] = hn::BitCast(dw, hn::ShiftRight<8>(bytes));
    }
    for (int r = 0; r < kRows; ++r) {
      const auto x_even = broadcast_words(x + 8 * kQuadsTogether * r);
      const auto x_odd = broadcast_words(x + 8 * kQuadsTogether * r + 4);
      for (size_t a = 0; a < kRowVectors; ++a) {
        acc[r][a] = add_products(odd[a], x_odd, add_products(even[a], x_even, acc[r][a]));
      }
    }
  }
  const int32_t block = column / weights::kActivationBlock;
  for (int r = 0; r < kRows; ++r) {
    const size_t at = static_cast<size_t>(block) * rows + static_cast<size_t>(first + r);
    const int32_t sum = group.sums[static_cast<size_t>(segment.half) * group.block_numbers() + at];
    const auto zero = hn::Set(d, weights::kZeroPoint * sum);
    const auto scale = hn::Set(df, group.scales[at] * segment.codebook.unit);
    for (size_t a = 0; a < kRowVectors; ++a) {
      float* target = sums + static_cast<size_t>(r) * weights::kTileRows + a * hn::Lanes(d);
      const auto value = hn::Mul(hn::ConvertTo(df, hn::Sub(acc[r][a], zero)), scale);
      hn::StoreU(hn::Add(hn::LoadU(df, target), value), df, target);
    }
  }
}

HWY_INLINE void multiply_group(const uint8_t* levels, const LinearSegment& segment, int32_t column, int32_t columns,
                               const ActivationGroup& group, float* sums) {
  int32_t row = 0;
  for (; row + 2 <= group.rows; row += 2) {
    multiply_block<2>(levels, segment, column, columns, group, row, sums + row * weights::kTileRows);
  }
  if (row < group.rows) {
    multiply_block<1>(levels, segment, column, columns, group, row, sums + row * weights::kTileRows);
  }
}

template <class Decoder>
void multiply_packed(const LinearSegment& segment, const ActivationGroup* groups, int32_t count, float* sums) {
  const Decoder decoder(segment.codebook);
  const size_t tile_bytes = segment.codebook.code.tile_bytes();
  const int32_t end = segment.first_column + segment.columns;
  HWY_ALIGN uint8_t levels[weights::kActivationBlock * weights::kTileRows];
  for (int32_t panel = 0; panel < segment.panels; ++panel) {
    const uint8_t* tile = segment.codes + static_cast<size_t>(panel) * segment.stride;
    for (int32_t column = segment.first_column; column < end;) {
      const int32_t stop = std::min((column / weights::kActivationBlock + 1) * weights::kActivationBlock, end);
      for (int32_t i = column; i < stop; i += weights::kTileColumns, tile += tile_bytes) {
        prefetch(tile + 1024);
        decoder.decode(tile, levels + (i - column) * weights::kTileRows);
      }
      float* target = sums;
      for (int32_t g = 0; g < count; ++g) {
        multiply_group(levels, segment, column, stop - column, groups[g], target);
        target += groups[g].rows * weights::kTileRows;
      }
      column = stop;
    }
    for (int32_t g = 0; g < count; ++g) sums += groups[g].rows * weights::kTileRows;
  }
}

template <int kRows, int kPanels>
HWY_INLINE void multiply_float16_rows(const uint16_t* panels, size_t stride, const FloatGroup& group, int32_t first,
                                      float* sums, size_t sums_stride) {
  const hn::RebindToFloat<SumTag> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> dh;
  hn::Vec<decltype(d)> acc[kPanels][kRows][kRowVectors];
  for (int p = 0; p < kPanels; ++p) {
    for (auto& row : acc[p]) {
      for (auto& each : row) each = hn::Zero(d);
    }
  }
  const auto* numbers = reinterpret_cast<const hwy::float16_t*>(panels);
  const float* x = group.x + first;
  for (int32_t column = 0; column < group.in; ++column, x += group.rows, numbers += weights::kTileRows) {
    for (size_t p = 0; p < kPanels; ++p) {
      if (column % 2 == 0) prefetch(numbers + p * stride + 1024);
      for (size_t a = 0; a < kRowVectors; ++a) {
        const auto weights = hn::PromoteTo(d, hn::LoadU(dh, numbers + p * stride + a * hn::Lanes(d)));
        for (int r = 0; r < kRows; ++r) acc[p][r][a] = hn::MulAdd(weights, hn::Set(d, x[r]), acc[p][r][a]);
      }
    }
  }
  for (size_t p = 0; p < kPanels; ++p) {
    for (size_t r = 0; r < kRows; ++r) {
      float* target = sums + p * sums_stride + r * weights::kTileRows;
      for (size_t a = 0; a < kRowVectors; ++a) hn::StoreU(acc[p][r][a], d, target + a * hn::Lanes(d));
    }
  }
}

/// Overwrites sums.
inline void multiply_float16(const uint16_t* panels, size_t stride, int32_t count, const FloatGroup* groups,
                             int32_t group_count, float* sums) {
  int32_t rows = 0;
  for (int32_t g = 0; g < group_count; ++g) rows += groups[g].rows;
  const size_t sums_stride = static_cast<size_t>(rows) * weights::kTileRows;
  constexpr int32_t kMost = kRowVectors == 1 ? 8 : (kRowVectors == 2 ? 4 : 2);  // limited by registers
  int32_t panel = 0;
  if (rows == 1) {
    for (; panel + 4 <= count; panel += 4) {
      multiply_float16_rows<1, 4>(panels + static_cast<size_t>(panel) * stride, stride, groups[0], 0,
                                  sums + static_cast<size_t>(panel) * sums_stride, sums_stride);
    }
  }
  for (; panel < count; ++panel) {
    const uint16_t* codes = panels + static_cast<size_t>(panel) * stride;
    float* target = sums + static_cast<size_t>(panel) * sums_stride;
    for (int32_t g = 0; g < group_count; ++g) {
      const FloatGroup& group = groups[g];
      int32_t row = 0;
      const auto rows_at_once = [&]<int kRows>() {
        for (; row + kRows <= group.rows; row += kRows) {
          multiply_float16_rows<kRows, 1>(codes, stride, group, row, target, sums_stride);
          target += kRows * weights::kTileRows;
        }
      };
      rows_at_once.template operator()<kMost>();
      rows_at_once.template operator()<kMost / 2>();
      if constexpr (kMost > 4) rows_at_once.template operator()<2>();
      rows_at_once.template operator()<1>();
    }
  }
}

}  // namespace kvq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
