// Gain–shape pages in integers: codes are multiplied by rounded queries and probabilities; gains multiply the sums and
// probabilities.
#if defined(KVQ_ATTEND_GAIN_SHAPE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KVQ_ATTEND_GAIN_SHAPE_INL_H
#undef KVQ_ATTEND_GAIN_SHAPE_INL_H
#else
#define KVQ_ATTEND_GAIN_SHAPE_INL_H
#endif

#include "backend/cpu/attend/gain_shape/words-inl.h"
#include "backend/cpu/attend/kernels.h"
#include "backend/cpu/attend/latent-inl.h"
#include "backend/cpu/attend/products-inl.h"
#include "backend/cpu/attend/rows-inl.h"
#include "core/float16.h"
#include "formats/gain_shape/gains.h"

#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

HWY_INLINE void read_gains(const SideLayout& layout, const std::byte* data, float (&gains)[kPageSlots]) {
  const float largest = from_float16(*reinterpret_cast<const uint16_t*>(data + layout.largest_offset()));
  for (int32_t slot = 0; slot < kPageSlots; ++slot) {
    const auto code = static_cast<size_t>(data[layout.gain_offset() + static_cast<size_t>(slot)]);
    gains[slot] = gain_shape::kGainFactors[code] * largest;
  }
}

/// Products of a page's mean with all rows.
template <int kRows>
HWY_INLINE void mean_products(const SideLayout& layout, const std::byte* data, const RoundedQueries& q,
                              float (&out)[kBlockRows]) {
  const PairTag d16;
  const SumTag d;
  const hn::Rebind<int8_t, PairTag> d8;
  const auto lanes = static_cast<int32_t>(hn::Lanes(d16));
  const auto* mean = reinterpret_cast<const int8_t*>(data + layout.mean_offset());
  const int16_t* operands[kRows];
  SumVector sums[kRows];
  SumVector others[kRows];
  for (int r = 0; r < kRows; ++r) {
    operands[r] = reinterpret_cast<const int16_t*>(q.fine(r));
    sums[r] = others[r] = hn::Zero(d);
  }
  HWY_ALIGN int8_t last[32] = {};
  for (int32_t at = 0; at < layout.head_dim; at += lanes) {
    const int8_t* codes = mean + at;
    if (at + lanes > layout.head_dim) {  // queries are zeros there, but the page may end
      std::memcpy(last, codes, static_cast<size_t>(layout.head_dim - at));
      codes = last;
    }
    const auto wide = hn::PromoteTo(d16, hn::LoadU(d8, codes));
    for (int r = 0; r < kRows; ++r) {
      sums[r] = hn::ReorderWidenMulAccumulate(d, wide, hn::LoadU(d16, operands[r] + at), sums[r], others[r]);
    }
  }
  for (int r = 0; r < kRows; ++r) sums[r] = hn::Add(sums[r], others[r]);
  const float scale = from_float16(*reinterpret_cast<const uint16_t*>(data + layout.mean_scale_offset()));
  const RowTag rows;
  hn::Store(hn::Mul(hn::ConvertTo(rows, reduce_rows<SumOfTwo>(d, sums)), hn::Set(rows, scale)), rows, out);
  for (int r = 0; r < kRows; ++r) out[r] *= q.fine_step(r);
}

HWY_INLINE void prefetch_gains(const SideLayout& layout, const SideData& side) {
  for (size_t i = layout.gain_offset(); i < layout.bytes(); i += kDataAlignment) prefetch(side.later + i);
}

template <typename Words, int kRows>
HWY_INLINE void gain_shape_keys_page(const SideShape& shape, const SideData& keys, const QueryRows& q, float* scores) {
  constexpr int kVectors = kVectorsOfProducts<Words>;
  const hn::RebindToFloat<SumTag> df;
  const auto lanes = static_cast<int32_t>(hn::Lanes(df));
  const SideLayout layout = shape.layout(Side::kKeys, CodeType::gain_scalar(Words::kBits));
  prefetch_gains(layout, keys);
  HWY_ALIGN float gains[kPageSlots];
  read_gains(layout, keys.data, gains);
  HWY_ALIGN float means[kBlockRows] = {};
  if (shape.page_mean) mean_products<kRows>(layout, keys.data, q.rounded, means);
  const int32_t* operands[kRows];
  float steps[kRows];
  float offsets[kRows];
  for (int r = 0; r < kRows; ++r) {
    operands[r] = Words::kTrellis ? q.rounded.fine(r) : q.rounded.bytes(r);
    steps[r] = Words::kTrellis ? q.rounded.fine_step(r) : q.rounded.step(r);
    offsets[r] = Words::kOffset * static_cast<float>(q.rounded.sum(r));
  }
  const typename Words::Keys load{layout, keys};
  for (int32_t slot = 0; slot < kPageSlots; slot += kVectors * lanes) {
    Products<kRows, kVectors> products;
    products.template run<Words, Side::kKeys>(Words::blocks(layout), operands, load, slot);
    for (int r = 0; r < kRows; ++r) {
      for (int a = 0; a < kVectors; ++a) {
        const auto levels = hn::Sub(products.value(r, a), hn::Set(df, offsets[r]));
        const auto residual = hn::Mul(levels, hn::Load(df, gains + slot + a * lanes));
        hn::StoreU(hn::MulAdd(residual, hn::Set(df, steps[r]), hn::Set(df, means[r])), df,
                   scores + r * kTileSlots + slot + a * lanes);
      }
    }
  }
}

/// Probabilities of kRows rows times the gains of a page as bytes.
template <typename Words, int kRows>
struct RoundedWeights {
  HWY_ALIGN int32_t words[kRows][kPageSlots / 4];
  HWY_ALIGN float step[kBlockRows];

  /// Returns step · Σ integer of every row. Offsets of the rounding are spread evenly over the tokens, so that many
  /// small weights are not all lost beside a large one.
  HWY_INLINE RowVector round(const float* p, const float* gains) {
    const hn::RebindToFloat<SumTag> d;
    const RowTag rows;
    const auto lanes = static_cast<int32_t>(hn::Lanes(d));
    hn::Vec<decltype(d)> largest[kRows];
    SumVector sums[kRows];
    for (int r = 0; r < kRows; ++r) {
      largest[r] = hn::Zero(d);
      sums[r] = hn::Zero(SumTag());
    }
    for (int32_t slot = 0; slot < kPageSlots; slot += lanes) {
      const auto gain = hn::Load(d, gains + slot);
      for (int r = 0; r < kRows; ++r) {
        largest[r] = hn::Max(largest[r], hn::Mul(gain, hn::LoadU(d, p + r * kTileSlots + slot)));
      }
    }
    const RowRounding rounding(reduce_rows<MaximumOfTwo>(d, largest), kTopWeight<Words>);
    hn::Store(rounding.steps, rows, step);
    for (int r = 0; r < kRows; ++r) {
      const auto factor = hn::Set(d, rounding.factors[r]);
      RoundedVector rounded[kVectorsOf32];
      for (int a = 0; a < kVectorsOf32; ++a) {
        const auto weights = hn::Mul(hn::Load(d, gains + a * lanes), hn::LoadU(d, p + r * kTileSlots + a * lanes));
        const auto dither = hn::Sub(hn::Load(d, kDither.data() + a * lanes), hn::Set(d, 0.5F));
        rounded[a] = hn::Add(hn::MulAdd(weights, factor, dither), hn::Set(d, kToLowBits));
      }
      store_bytes(rounded, reinterpret_cast<uint8_t*>(words[r]), sums[r]);
    }
    return hn::Mul(hn::ConvertTo(rows, reduce_rows<SumOfTwo>(SumTag(), sums)), rounding.steps);
  }
};

/// Adds the weighted sums of kVectors vectors of channels of a page.
template <typename Words, int kRows, int kVectors>
HWY_INLINE void add_value_channels(const SideLayout& layout, const typename Words::Values& load, int32_t channel,
                                   const RoundedWeights<Words, kRows>& weights, float* out) {
  const hn::RebindToFloat<SumTag> d;
  const auto lanes = static_cast<int32_t>(hn::Lanes(d));
  const int32_t width = layout.low_plane().lanes;
  const int32_t* operands[kRows];
  for (int r = 0; r < kRows; ++r) operands[r] = weights.words[r];
  Products<kRows, kVectors> products;
  products.template run<Words, Side::kValues>(Words::blocks(layout), operands, load, channel);
  for (int r = 0; r < kRows; ++r) {
    const auto step = hn::Set(d, weights.step[r]);
    for (int a = 0; a < kVectors; ++a) {
      float* at = out + r * width + channel + a * lanes;
      hn::StoreU(hn::MulAdd(products.value(r, a), step, hn::LoadU(d, at)), d, at);
    }
  }
}

// Not inlined: emulated vectors take stack, and three of these in one frame too much.
template <typename Words, int kRows>
HWY_NOINLINE void gain_shape_values_rows(const SideLayout& layout, const SideData* values, int32_t pages,
                                         const float* p, float* out) {
  constexpr int kVectors = kVectorsOfProducts<Words>;
  const hn::RebindToFloat<SumTag> d;
  const RowTag rows;
  const auto lanes = static_cast<int32_t>(hn::Lanes(d));
  const int32_t width = layout.low_plane().lanes;
  RowVector bias = hn::Zero(rows);
  // All pages first: none waits for the products of another.
  RoundedWeights<Words, kRows> weights[kTilePages];
  for (int32_t page = 0; page < pages; ++page) {
    prefetch_gains(layout, values[page]);
    HWY_ALIGN float gains[kPageSlots];
    read_gains(layout, values[page].data, gains);
    bias = hn::MulAdd(hn::Set(rows, Words::kOffset), weights[page].round(p + page * kPageSlots, gains), bias);
  }
  for (int32_t page = 0; page < pages; ++page) {
    const typename Words::Values load{layout, values[page]};
    int32_t channel = 0;
    for (; channel + kVectors * lanes <= width; channel += kVectors * lanes) {
      add_value_channels<Words, kRows, kVectors>(layout, load, channel, weights[page], out);
    }
    for (; channel < width; channel += lanes) {
      add_value_channels<Words, kRows, 1>(layout, load, channel, weights[page], out);
    }
  }
  if constexpr (Words::kOffset != 0.0F) {
    HWY_ALIGN float biases[kBlockRows];
    hn::Store(bias, rows, biases);
    for (int r = 0; r < kRows; ++r) {
      for (int32_t channel = 0; channel < width; channel += lanes) {
        float* at = out + r * width + channel;
        hn::StoreU(hn::Sub(hn::LoadU(d, at), hn::Set(d, biases[r])), d, at);
      }
    }
  }
}

template <typename Words, int kRows>
HWY_INLINE void gain_shape_keys_rows(const SideShape& shape, const SideData* keys, int32_t pages, const QueryRows& q,
                                     float* scores) {
  for (int32_t page = 0; page < pages; ++page) {
    gain_shape_keys_page<Words, kRows>(shape, keys[page], q, scores + page * kPageSlots);
  }
}

template <typename Words>
void gain_shape_keys(const SideShape& shape, const SideData* keys, int32_t pages, int32_t rows, const QueryRows& q,
                     float* scores) {
  if (rows == 1) {
    gain_shape_keys_rows<Words, 1>(shape, keys, pages, q, scores);
  } else if (rows == 2) {
    gain_shape_keys_rows<Words, 2>(shape, keys, pages, q, scores);
  } else {
    gain_shape_keys_rows<Words, 4>(shape, keys, pages, q, scores);
  }
}

template <typename Words>
void gain_shape_values(const SideShape& shape, const SideData* values, int32_t pages, int32_t rows, const float* p,
                       float* out) {
  const SideLayout layout = shape.layout(Side::kValues, CodeType::gain_scalar(Words::kBits));
  if (rows == 1) {
    gain_shape_values_rows<Words, 1>(layout, values, pages, p, out);
  } else if (rows == 2) {
    gain_shape_values_rows<Words, 2>(layout, values, pages, p, out);
  } else {
    gain_shape_values_rows<Words, 4>(layout, values, pages, p, out);
  }
}

/// Levels times gains as FP16 numbers: the order of a trellis's channels differs between values and keys.
template <typename Words>
void trellis_as_keys(const SideShape& shape, const std::byte* values, std::byte* keys, std::byte* room) {
  const hn::RebindToFloat<SumTag> df;
  const SumTag d;
  const SideLayout layout = shape.layout(Side::kValues, CodeType::gain_scalar(Words::kBits));
  const int32_t width = layout.low_plane().lanes;
  const auto lanes = static_cast<int32_t>(hn::Lanes(df));
  const SideData side{values, values};
  HWY_ALIGN float gains[kPageSlots];
  read_gains(layout, values, gains);
  auto* numbers = reinterpret_cast<uint16_t*>(room);
  const typename Words::Values load{layout, side};
  for (int32_t channel = 0; channel < width; channel += lanes) {
    for (int32_t block = 0; block < Words::blocks(layout); ++block) {
      const Words words = load(block, channel, false);
      words.for_each_field([&](int field, ByteVector bytes) HWY_ATTR {
        const int32_t slot = 4 * (block * Words::kFields + field);
        const auto quads = hn::BitCast(d, bytes);
        const auto number = [&](SumVector level, int32_t of_slot) HWY_ATTR {
          return hn::Mul(hn::ConvertTo(df, hn::ShiftRight<24>(level)), hn::Set(df, gains[of_slot]));
        };
        uint16_t* at = numbers + static_cast<ptrdiff_t>(slot) * width + ptrdiff_t{2} * channel;
        store_pair(df, number(hn::ShiftLeft<24>(quads), slot), number(hn::ShiftLeft<16>(quads), slot + 1), at);
        store_pair(df, number(hn::ShiftLeft<8>(quads), slot + 2), number(quads, slot + 3), at + ptrdiff_t{2} * width);
      });
    }
  }
  transpose_float16(shape.head_dim, room, keys);
}

/// Codes keep their meaning on the other side.
template <int kBits>
void scalar_as_keys(const SideShape& shape, const std::byte* values, std::byte* keys, std::byte* /*room*/) {
  const SideLayout from = shape.layout(Side::kValues, CodeType::gain_scalar(kBits));
  const SideLayout to = shape.layout(Side::kKeys, CodeType::gain_scalar(kBits));
  transpose_plane<kBits == 3 ? 2 : kBits>(shape.head_dim, values, keys);
  if constexpr (kBits == 3) {
    transpose_plane<1>(shape.head_dim, values + from.high_offset(), keys + to.high_offset());
  }
  std::memcpy(keys + to.gain_offset(), values + from.gain_offset(), kPageSlots);
  std::memcpy(keys + to.largest_offset(), values + from.largest_offset(), sizeof(uint16_t));
}

}  // namespace kvq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
