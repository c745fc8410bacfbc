// Products with packed matrices, while tiles are decoded for few rows, after that for many.
#if defined(KVQ_LINEAR_LINEAR_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KVQ_LINEAR_LINEAR_INL_H
#undef KVQ_LINEAR_LINEAR_INL_H
#else
#define KVQ_LINEAR_LINEAR_INL_H
#endif

#include "backend/cpu/linear/decode-inl.h"
#include "backend/cpu/linear/kernels.h"
#include "backend/cpu/linear/quads-inl.h"
#include "backend/cpu/vectors.h"

#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Sums of products of kRows rows of activations with the levels of one panel.
template <int kRows>
struct PanelSums {
  SumVector of[kRows][kQuadVectors];

  HWY_INLINE void clear() {
    for (auto& row : of) {
      for (auto& each : row) each = hn::Zero(SumTag());
    }
  }

  /// Vector `a` of a quad of columns. `x`: the quad of the first row.
  HWY_INLINE void add(ByteVector levels, const std::byte* x, int32_t a) {
    for (int r = 0; r < kRows; ++r) {
      int32_t quad = 0;
      std::memcpy(&quad, x + 4 * kQuadsTogether * r, sizeof(quad));
      of[r][a] = add_products(levels, hn::BitCast(ByteTag(), hn::Set(SumTag(), quad)), of[r][a]);
    }
  }

  /// Adds the sums of a block, scaled, to `sums`. `first`: of the rows in their group.
  HWY_INLINE void finish(const LinearSegment& segment, const ActivationGroup& group, int32_t block, int32_t first,
                         float* sums) const {
    const SumTag d;
    const hn::RebindToFloat<SumTag> df;
    for (int r = 0; r < kRows; ++r) {
      const size_t at = static_cast<size_t>(block) * static_cast<size_t>(group.rows) + static_cast<size_t>(first + r);
      const int32_t sum = group.sums[static_cast<size_t>(segment.half) * group.block_numbers() + at];
      const auto bias = hn::Set(d, kLevelBias * sum);
      const auto scale = hn::Set(df, group.scales[at] * segment.codebook.unit);
      for (size_t a = 0; a < kQuadVectors; ++a) {
        float* target = sums + static_cast<size_t>(r) * weights::kTileRows + a * hn::Lanes(d);
        const auto value = hn::Mul(hn::ConvertTo(df, hn::Sub(of[r][a], bias)), scale);
        hn::StoreU(hn::Add(hn::LoadU(df, target), value), df, target);
      }
    }
  }
};

/// Calls use(first column, end) for the parts of a segment that lie in one block of activations.
template <class Use>
HWY_INLINE void for_each_block(const LinearSegment& segment, const Use& use) {
  const int32_t end = segment.first_column + segment.columns;
  for (int32_t column = segment.first_column; column < end;) {
    const int32_t stop = std::min((column / weights::kActivationBlock + 1) * weights::kActivationBlock, end);
    use(column, stop);
    column = stop;
  }
}

/// kRows rows with one panel, while it is decoded.
template <class Decoder, int kRows>
HWY_INLINE void multiply_while_decoding(const Decoder& decoder, const LinearSegment& segment, const uint8_t* tile,
                                        const ActivationGroup& group, float* sums) {
  const size_t tile_bytes = segment.codebook.code.tile_bytes();
  for_each_block(segment, [&](int32_t column, int32_t stop) HWY_ATTR {
    PanelSums<kRows> acc;
    acc.clear();
    for (int32_t i = column; i < stop; i += weights::kTileColumns, tile += tile_bytes) {
      prefetch(tile + 1024);
      const std::byte* x = group.quads + 4 * group.quad_at(i, 0);
      decoder.decode(tile, [&](int32_t at, ByteVector levels) HWY_ATTR {
        acc.add(levels, x + at / kQuadBytes * 4, at % kQuadBytes / static_cast<int32_t>(hn::MaxLanes(ByteTag())));
      });
    }
    acc.finish(segment, group, column / weights::kActivationBlock, 0, sums);
  });
}

/// Adds a block to the sums of one panel: kRows rows of one group, starting with `first`.
template <int kRows>
HWY_INLINE void multiply_block(const uint8_t* levels, const LinearSegment& segment, int32_t column, int32_t stop,
                               const ActivationGroup& group, int32_t first, float* sums) {
  PanelSums<kRows> acc;
  acc.clear();
  for (int32_t i = column; i < stop; i += 4, levels += kQuadBytes) {
    const std::byte* x = group.quads + 4 * group.quad_at(i, first);
    for (int32_t a = 0; a < kQuadVectors; ++a) {
      acc.add(hn::Load(ByteTag(), levels + a * static_cast<int32_t>(hn::MaxLanes(ByteTag()))), x, a);
    }
  }
  acc.finish(segment, group, column / weights::kActivationBlock, first, sums);
}

/// Panels one after the other, each decoded once for all groups, a block at a time.
template <class Decoder>
HWY_INLINE void decode_and_multiply(const Decoder& decoder, const LinearSegment& segment, const uint8_t* tile,
                                    const ActivationGroup* groups, int32_t count, float* sums) {
  const size_t tile_bytes = segment.codebook.code.tile_bytes();
  HWY_ALIGN uint8_t levels[weights::kActivationBlock * weights::kTileRows];
  for_each_block(segment, [&](int32_t column, int32_t stop) HWY_ATTR {
    uint8_t* out = levels;
    for (int32_t i = column; i < stop; i += weights::kTileColumns, tile += tile_bytes, out += weights::kTileWeights) {
      prefetch(tile + 1024);
      decoder.decode(tile, [out](int32_t at, ByteVector bytes) HWY_ATTR { hn::Store(bytes, ByteTag(), out + at); });
    }
    float* target = sums;
    for (int32_t g = 0; g < count; ++g) {
      int32_t row = 0;
      const auto rows_at_once = [&]<int kRows>() HWY_ATTR {
        for (; row + kRows <= groups[g].rows; row += kRows, target += kRows * weights::kTileRows) {
          multiply_block<kRows>(levels, segment, column, stop, groups[g], row, target);
        }
      };
      rows_at_once.template operator()<4>();
      rows_at_once.template operator()<2>();
      rows_at_once.template operator()<1>();
    }
  });
}

/// One group of at most kRows rows.
template <class Decoder, int kRows>
HWY_INLINE void multiply_few_rows(const Decoder& decoder, const LinearSegment& segment, const uint8_t* codes,
                                  const ActivationGroup& group, float* sums) {
  if constexpr (kRows > 1) {
    if (group.rows < kRows) {
      return multiply_few_rows<Decoder, kRows - 1>(decoder, segment, codes, group, sums);
    }
  }
  multiply_while_decoding<Decoder, kRows>(decoder, segment, codes, group, sums);
}

template <class Decoder>
void multiply_packed(const LinearSegment& segment, const ActivationGroup* groups, int32_t count, float* sums) {
  const Decoder decoder(segment.codebook);
  int32_t rows = 0;
  for (int32_t g = 0; g < count; ++g) rows += groups[g].rows;
  for (int32_t panel = 0; panel < segment.panels; ++panel, sums += rows * weights::kTileRows) {
    const uint8_t* codes = segment.codes + static_cast<size_t>(panel) * segment.stride;
    if (rows <= Decoder::kFewRows) {
      multiply_few_rows<Decoder, Decoder::kFewRows>(decoder, segment, codes, groups[0], sums);
    } else {
      decode_and_multiply(decoder, segment, codes, groups, count, sums);
    }
  }
}

template <int kRows, int kPanels>
HWY_INLINE void multiply_float16_rows(const uint16_t* panels, size_t stride, const FloatGroup& group, int32_t first,
                                      float* sums, size_t sums_stride) {
  const hn::RebindToFloat<SumTag> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> dh;
  hn::Vec<decltype(d)> acc[kPanels][kRows][kQuadVectors];
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
      for (size_t a = 0; a < kQuadVectors; ++a) {
        const auto weights = hn::PromoteTo(d, hn::LoadU(dh, numbers + p * stride + a * hn::Lanes(d)));
        for (int r = 0; r < kRows; ++r) acc[p][r][a] = hn::MulAdd(weights, hn::Set(d, x[r]), acc[p][r][a]);
      }
    }
  }
  for (size_t p = 0; p < kPanels; ++p) {
    for (size_t r = 0; r < kRows; ++r) {
      float* target = sums + p * sums_stride + r * weights::kTileRows;
      for (size_t a = 0; a < kQuadVectors; ++a) hn::StoreU(acc[p][r][a], d, target + a * hn::Lanes(d));
    }
  }
}

/// Overwrites sums.
inline void multiply_float16(const uint16_t* panels, size_t stride, int32_t count, const FloatGroup* groups,
                             int32_t group_count, float* sums) {
  int32_t rows = 0;
  for (int32_t g = 0; g < group_count; ++g) rows += groups[g].rows;
  const size_t sums_stride = static_cast<size_t>(rows) * weights::kTileRows;
  constexpr int32_t kMost = kQuadVectors == 1 ? 8 : (kQuadVectors == 2 ? 4 : 2);  // limited by registers
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
