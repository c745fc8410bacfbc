// Gain–shape pages in integers: codes are multiplied by rounded queries and probabilities; gains multiply the sums and
// probabilities.
//
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
HWY_INLINE void mean_products(const SideLayout& layout, const std::byte* data, const float* q, float (&out)[kRows]) {
  const hn::CappedTag<float, 8> d;  // head sizes are multiples of this
  const hn::Rebind<int32_t, decltype(d)> di;
  const hn::Rebind<int8_t, decltype(d)> d8;
  const auto lanes = static_cast<int32_t>(hn::Lanes(d));
  const auto* mean = reinterpret_cast<const int8_t*>(data + layout.mean_offset());
  hn::Vec<decltype(d)> sums[kRows];
  for (auto& each : sums) each = hn::Zero(d);
  for (int32_t i = 0; i < layout.head_dim; i += lanes) {
    const auto codes = hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, mean + i)));
    for (int r = 0; r < kRows; ++r) sums[r] = hn::MulAdd(codes, hn::LoadU(d, q + r * layout.head_dim + i), sums[r]);
  }
  const float scale = from_float16(*reinterpret_cast<const uint16_t*>(data + layout.mean_scale_offset()));
  for (int r = 0; r < kRows; ++r) out[r] = hn::GetLane(hn::SumOfLanes(d, sums[r])) * scale;
}

HWY_INLINE void prefetch_gains(const SideLayout& layout, const SideData& side) {
  for (size_t i = layout.gain_offset(); i < layout.bytes(); i += kDataAlignment) prefetch(side.later + i);
}

template <typename Words, int kRows>
HWY_INLINE void gain_shape_keys_rows(const SideShape& shape, const SideData& keys, const QueryRows& q, float* scores) {
  constexpr int kVectors = Words::kTrellis ? 1 : 2;
  constexpr bool kFine = Words::kWide;
  const hn::RebindToFloat<SumTag> df;
  const auto lanes = static_cast<int32_t>(hn::Lanes(df));
  const SideLayout layout = shape.layout(Side::kKeys, CodeType::gain_scalar(Words::kBits));
  prefetch_gains(layout, keys);
  float gains[kPageSlots];
  read_gains(layout, keys.data, gains);
  const int32_t* operands[kRows];
  float steps[kRows];
  float offsets[kRows];
  float means[kRows] = {};
  for (int r = 0; r < kRows; ++r) {
    const RoundedQueries::Bytes bytes = Words::kTrellis ? q.rounded.small_bytes(r) : q.rounded.bytes(r);
    operands[r] = kFine ? q.rounded.fine(r) : bytes.words;
    steps[r] = kFine ? q.rounded.fine_step(r) : bytes.step;
    offsets[r] = (Words::kOffset + static_cast<float>(kBias<Words, Side::kKeys>)) * static_cast<float>(bytes.sum);
  }
  if (shape.page_mean) mean_products<kRows>(layout, keys.data, q.floats, means);
  for (int32_t slot = 0; slot < kPageSlots; slot += kVectors * lanes) {
    Products<kRows, kVectors> products;
    products.template run<Words, Side::kKeys>(Words::blocks(layout), operands, KeyLoader<Words>{layout, keys}, slot);
    for (int r = 0; r < kRows; ++r) {
      for (int a = 0; a < kVectors; ++a) {
        const auto levels = hn::Sub(products.value(r, a), hn::Set(df, offsets[r]));
        const auto gain = hn::Mul(hn::LoadU(df, gains + slot + a * lanes), hn::Set(df, steps[r]));
        hn::StoreU(hn::MulAdd(levels, gain, hn::Set(df, means[r])), df, scores + r * kTileSlots + slot + a * lanes);
      }
    }
  }
}

/// One row's probabilities times gains as integers: bytes, or 16-bit integers.
template <typename Words>
struct RoundedWeights {
  static constexpr float kTop = kTopWeight<Words>;
  static constexpr bool kWide = Words::kWide;
  HWY_ALIGN int32_t words[kPageSlots * (kWide ? 2 : 1) / 4];
  float step;

  /// Returns step · Σ integer. Truncation offsets are spread evenly over the tokens, so that many small weights are not
  /// all lost beside a large one.
  HWY_INLINE float round(const float* p, const float (&gains)[kPageSlots]) {
    const hn::RebindToFloat<SumTag> d;
    const auto lanes = static_cast<int32_t>(hn::Lanes(d));
    auto largest = hn::Zero(d);
    for (int32_t slot = 0; slot < kPageSlots; slot += lanes) {
      largest = hn::Max(largest, hn::Mul(hn::LoadU(d, p + slot), hn::LoadU(d, gains + slot)));
    }
    const float bound = hn::GetLane(hn::MaxOfLanes(d, largest));
    const auto factor = hn::Set(d, kTop / std::max(bound, 1e-30F));
    step = bound / kTop;
    auto sum = hn::Zero(SumTag());
    for (int32_t slot = 0; slot < kPageSlots; slot += lanes) {
      const auto weights = hn::Mul(hn::LoadU(d, p + slot), hn::LoadU(d, gains + slot));
      const auto integers = hn::ConvertTo(SumTag(), hn::MulAdd(weights, factor, hn::LoadU(d, kDither.data() + slot)));
      sum = hn::Add(sum, integers);
      if constexpr (kWide) {
        const hn::Rebind<int16_t, SumTag> narrow;
        hn::StoreU(hn::DemoteTo(narrow, integers), narrow, reinterpret_cast<int16_t*>(words) + slot);
      } else {
        const hn::Rebind<uint8_t, SumTag> narrow;
        hn::StoreU(hn::DemoteTo(narrow, integers), narrow, reinterpret_cast<uint8_t*>(words) + slot);
      }
    }
    return step * static_cast<float>(hn::GetLane(hn::SumOfLanes(SumTag(), sum)));
  }
};

/// A page of values, and probabilities as its operands.
template <typename Words, int kRows>
struct WeighedPage {
  typename Words::Before before;
  RoundedWeights<Words> weights[kRows];
};

template <typename Words>
struct ValueLoader {
  const SideLayout& layout;
  const SideData& values;
  const typename Words::Before& before;

  HWY_INLINE Words operator()(int32_t block, int32_t channel) const {
    Words words;
    words.load_values(layout, values, before, block, channel);
    return words;
  }
};

/// Adds the weighted sums of kVectors vectors of channels over all pages.
template <typename Words, int kRows, int kVectors>
HWY_INLINE void add_value_channels(const SideLayout& layout, const SideData* values, int32_t pages, int32_t channel,
                                   const WeighedPage<Words, kRows>* weighed, const float (&bias)[kRows], float* out) {
  const hn::RebindToFloat<SumTag> d;
  const auto lanes = static_cast<int32_t>(hn::Lanes(d));
  const int32_t width = layout.low_plane().lanes;
  hn::Vec<decltype(d)> totals[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int a = 0; a < kVectors; ++a) {
      totals[r][a] = hn::Sub(hn::LoadU(d, out + r * width + channel + a * lanes), hn::Set(d, bias[r]));
    }
  }
  for (int32_t page = 0; page < pages; ++page) {
    const int32_t* operands[kRows];
    for (int r = 0; r < kRows; ++r) operands[r] = weighed[page].weights[r].words;
    Products<kRows, kVectors> products;
    products.template run<Words, Side::kValues>(
        Words::blocks(layout), operands, ValueLoader<Words>{layout, values[page], weighed[page].before}, channel);
    for (int r = 0; r < kRows; ++r) {
      const auto step = hn::Set(d, weighed[page].weights[r].step);
      for (int a = 0; a < kVectors; ++a) totals[r][a] = hn::MulAdd(products.value(r, a), step, totals[r][a]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int a = 0; a < kVectors; ++a) hn::StoreU(totals[r][a], d, out + r * width + channel + a * lanes);
  }
}

/// Pages that are added together: as many as the work of trellises leaves room for on the stack.
template <typename Words>
inline constexpr int32_t kPagesTogether = Words::kTrellis ? 2 : kTilePages;

template <typename Words, int kRows>
HWY_INLINE void gain_shape_values_rows(const SideLayout& layout, const SideData* values, int32_t pages, const float* p,
                                       float* out) {
  const auto lanes = static_cast<int32_t>(hn::Lanes(SumTag()));
  const int32_t width = layout.low_plane().lanes;
  WeighedPage<Words, kRows> weighed[kPagesTogether<Words>];
  float bias[kRows] = {};
  for (int32_t page = 0; page < pages; ++page) {
    prefetch_gains(layout, values[page]);
    float gains[kPageSlots];
    read_gains(layout, values[page].data, gains);
    for (int r = 0; r < kRows; ++r) {
      bias[r] += Words::kOffset * weighed[page].weights[r].round(p + r * kTileSlots + page * kPageSlots, gains);
    }
    weighed[page].before.load(layout, values[page]);
  }
  constexpr int kVectors = Words::kTrellis ? 1 : 2;
  int32_t channel = 0;
  for (; channel + kVectors * lanes <= width; channel += kVectors * lanes) {
    add_value_channels<Words, kRows, kVectors>(layout, values, pages, channel, weighed, bias, out);
  }
  for (; channel < width; channel += lanes) {
    add_value_channels<Words, kRows, 1>(layout, values, pages, channel, weighed, bias, out);
  }
}

template <typename Words>
void gain_shape_keys(const SideShape& shape, const SideData& keys, int32_t rows, const QueryRows& q, float* scores) {
  if (rows == 1) {
    gain_shape_keys_rows<Words, 1>(shape, keys, q, scores);
  } else if (rows == 2) {
    gain_shape_keys_rows<Words, 2>(shape, keys, q, scores);
  } else {
    gain_shape_keys_rows<Words, 4>(shape, keys, q, scores);
  }
}

template <typename Words>
void gain_shape_values(const SideShape& shape, const SideData* values, int32_t pages, int32_t rows, const float* p,
                       float* out) {
  const SideLayout layout = shape.layout(Side::kValues, CodeType::gain_scalar(Words::kBits));
  constexpr int32_t kMost = kPagesTogether<Words>;
  for (; pages > 0; pages -= kMost, values += kMost, p += kMost * kPageSlots) {
    const int32_t some = std::min(pages, kMost);
    if (rows == 1) {
      gain_shape_values_rows<Words, 1>(layout, values, some, p, out);
    } else if (rows == 2) {
      gain_shape_values_rows<Words, 2>(layout, values, some, p, out);
    } else {
      gain_shape_values_rows<Words, 4>(layout, values, some, p, out);
    }
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
  float gains[kPageSlots];
  read_gains(layout, values, gains);
  auto* numbers = reinterpret_cast<uint16_t*>(room);
  typename Words::Before before;
  before.load(layout, side);
  for (int32_t channel = 0; channel < width; channel += lanes) {
    for (int32_t block = 0; block < Words::blocks(layout); ++block) {
      Words words;
      words.load_values(layout, side, before, block, channel);
      words.for_each_field([&](int field, hn::Vec<ByteTag> bytes) HWY_ATTR {
        const int32_t slot = 4 * (block * Words::kFields + field);
        const auto quads = hn::BitCast(d, bytes);
        const auto number = [&](hn::Vec<SumTag> level, int32_t of_slot) HWY_ATTR {
          return hn::Mul(hn::ConvertTo(df, hn::ShiftRight<24>(level)), hn::Set(df, gains[of_slot]));
        };
        uint16_t* at = numbers + static_cast<ptrdiff_t>(slot) * width + ptrdiff_t{2} * channel;
        const auto second = number(hn::ShiftLeft < Words::kWide ? 8 : 16 > (quads), slot + 1);  // as in_order()
        const auto third = number(hn::ShiftLeft < Words::kWide ? 16 : 8 > (quads), slot + 2);
        store_pair(df, number(hn::ShiftLeft<24>(quads), slot), second, at);
        store_pair(df, third, number(quads, slot + 3), at + ptrdiff_t{2} * width);
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
