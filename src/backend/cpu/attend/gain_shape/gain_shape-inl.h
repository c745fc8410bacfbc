// Gain–shape pages in integers: codes are multiplied by rounded queries and probabilities; gains multiply the sums and
// probabilities.
//
// Scalar codes and operands are bytes: two products fit 16 bits, and so do the sums of a block. Trellis levels are
// signed and larger, so their operands are 16-bit integers.
#if defined(KVQ_ATTEND_GAIN_SHAPE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KVQ_ATTEND_GAIN_SHAPE_INL_H
#undef KVQ_ATTEND_GAIN_SHAPE_INL_H
#else
#define KVQ_ATTEND_GAIN_SHAPE_INL_H
#endif

#include "backend/cpu/attend/gain_shape/words-inl.h"
#include "backend/cpu/attend/kernels.h"
#include "backend/cpu/attend/latent-inl.h"
#include "core/float16.h"
#include "formats/gain_shape/gains.h"

#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Lane i: sum of the products of bytes 2i and 2i + 1, which must fit. Highway added this instruction late.
HWY_INLINE hn::Vec<PairTag> byte_pair_products(hn::Vec<ByteTag> a, hn::Vec<SignedByteTag> b) {
#if HWY_TARGET == HWY_AVX2
  return hn::Vec<PairTag>{_mm256_maddubs_epi16(a.raw, b.raw)};
#elif HWY_TARGET == HWY_AVX3
  return hn::Vec<PairTag>{_mm512_maddubs_epi16(a.raw, b.raw)};
#else
  const PairTag d;
  const hn::RebindToUnsigned<PairTag> du;
  const auto even = hn::Mul(hn::BitCast(d, hn::And(hn::BitCast(du, a), hn::Set(du, uint16_t{255}))),
                            hn::ShiftRight<8>(hn::ShiftLeft<8>(hn::BitCast(d, b))));
  const auto odd = hn::Mul(hn::BitCast(d, hn::ShiftRight<8>(hn::BitCast(du, a))), hn::ShiftRight<8>(hn::BitCast(d, b)));
  return hn::Add(even, odd);
#endif
}

/// Sums of products by lane, for kRows rows.
template <int kRows>
struct Products {
  hn::Vec<SumTag> sums[kRows];
  hn::Vec<SumTag> others[kRows];  // where products of neighbours come in two vectors

  HWY_INLINE void clear() {
    for (int r = 0; r < kRows; ++r) sums[r] = others[r] = hn::Zero(SumTag());
  }
  HWY_INLINE void add(int r, hn::Vec<PairTag> a, hn::Vec<PairTag> b) {
    sums[r] = hn::ReorderWidenMulAccumulate(SumTag(), a, b, sums[r], others[r]);
  }
  HWY_INLINE hn::Vec<hn::RebindToFloat<SumTag>> value(int r) const {
    return hn::ConvertTo(hn::RebindToFloat<SumTag>(), hn::RearrangeToOddPlusEven(sums[r], others[r]));
  }

  /// Multiplies the fields of a block by words of operands[r].
  template <typename Words, Side kSide>
  HWY_INLINE void add_block(const Words& words, const int32_t* const (&operands)[kRows], int32_t block) {
    const SumTag d;
    const PairTag d16;
    if constexpr (Words::kTrellis) {
      words.for_each_field([&](int field, hn::Vec<ByteTag> bytes) HWY_ATTR {
        const auto pairs = hn::BitCast(d16, bytes);
        const auto first = hn::ShiftRight<8>(hn::ShiftLeft<8>(pairs));
        const auto second = hn::ShiftRight<8>(pairs);
        const int32_t at = 2 * (block * Words::kFields + field);
        for (int r = 0; r < kRows; ++r) {
          add(r, first, hn::BitCast(d16, hn::Set(d, operands[r][at])));
          add(r, second, hn::BitCast(d16, hn::Set(d, operands[r][at + 1])));
        }
      });
    } else {
      const SignedByteTag di8;
      const ByteTag du8;
      hn::Vec<PairTag> pairs[kRows];
      for (int r = 0; r < kRows; ++r) pairs[r] = hn::Zero(d16);
      words.for_each_field([&](int field, hn::Vec<ByteTag> bytes) HWY_ATTR {
        for (int r = 0; r < kRows; ++r) {
          const auto operand = hn::Set(d, operands[r][block * Words::kFields + field]);
          const auto products = kSide == Side::kKeys
                                    ? byte_pair_products(bytes, hn::BitCast(di8, operand))
                                    : byte_pair_products(hn::BitCast(du8, operand), hn::BitCast(di8, bytes));
          pairs[r] = hn::Add(pairs[r], products);
        }
      });
      for (int r = 0; r < kRows; ++r) add(r, pairs[r], hn::Set(d16, int16_t{1}));
    }
  }
};

HWY_INLINE void read_gains(const SideLayout& layout, const std::byte* data, float (&gains)[kPageSlots]) {
  const float largest = from_float16(*reinterpret_cast<const uint16_t*>(data + layout.largest_offset()));
  for (int32_t slot = 0; slot < kPageSlots; ++slot) {
    const auto code = static_cast<size_t>(data[layout.gain_offset() + static_cast<size_t>(slot)]);
    gains[slot] = gain_shape::kGainFactors[code] * largest;
  }
}

HWY_INLINE float mean_product(const SideLayout& layout, const std::byte* data, const float* q) {
  const hn::CappedTag<float, 8> d;  // head sizes are multiples of this
  const hn::Rebind<int32_t, decltype(d)> di;
  const hn::Rebind<int8_t, decltype(d)> d8;
  const auto lanes = static_cast<int32_t>(hn::Lanes(d));
  const auto* mean = reinterpret_cast<const int8_t*>(data + layout.mean_offset());
  auto sum = hn::Zero(d);
  for (int32_t i = 0; i < layout.head_dim; i += lanes) {
    const auto codes = hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, mean + i)));
    sum = hn::MulAdd(codes, hn::LoadU(d, q + i), sum);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum)) *
         from_float16(*reinterpret_cast<const uint16_t*>(data + layout.mean_scale_offset()));
}

HWY_INLINE void prefetch_gains(const SideLayout& layout, const SideData& side) {
  for (size_t i = layout.gain_offset(); i < layout.bytes(); i += kDataAlignment) prefetch(side.later + i);
}

template <typename Words, int kRows>
HWY_INLINE void gain_shape_keys_rows(const SideShape& shape, const SideData& keys, const QueryRows& q, float* scores) {
  const hn::RebindToFloat<SumTag> df;
  const auto lanes = static_cast<int32_t>(hn::Lanes(df));
  const SideLayout layout = shape.layout(Side::kKeys, CodeType::gain_scalar(Words::kBits));
  prefetch_gains(layout, keys);
  float gains[kPageSlots];
  read_gains(layout, keys.data, gains);
  const int32_t* operands[kRows];
  float steps[kRows];
  float offsets[kRows];
  float means[kRows];
  for (int r = 0; r < kRows; ++r) {
    operands[r] = Words::kTrellis ? q.rounded.fine(r) : q.rounded.bytes(r);
    steps[r] = Words::kTrellis ? q.rounded.fine_step(r) : q.rounded.step(r);
    offsets[r] = Words::kOffset * static_cast<float>(q.rounded.sum(r));
    means[r] = shape.page_mean ? mean_product(layout, keys.data, q.floats + r * shape.head_dim) : 0.0F;
  }
  const int32_t blocks = Words::blocks(layout);
  for (int32_t slot = 0; slot < kPageSlots; slot += lanes) {
    Products<kRows> products;
    products.clear();
    for (int32_t block = 0; block < blocks; ++block) {
      Words words;
      words.load_keys(layout, keys, block, slot);
      products.template add_block<Words, Side::kKeys>(words, operands, block);
    }
    for (int r = 0; r < kRows; ++r) {
      const auto levels = hn::Sub(products.value(r), hn::Set(df, offsets[r]));
      const auto gain = hn::Mul(hn::LoadU(df, gains + slot), hn::Set(df, steps[r]));
      hn::StoreU(hn::MulAdd(levels, gain, hn::Set(df, means[r])), df, scores + r * kTileSlots + slot);
    }
  }
}

/// One row's probabilities times gains as integers: bytes for scalar codes, 16-bit integers for levels.
template <typename Words>
struct RoundedWeights {
  static constexpr float kTop = Words::kTrellis ? 32767.0F : 255.0F;
  HWY_ALIGN int32_t words[kPageSlots * (Words::kTrellis ? 2 : 1) / 4];
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
      if constexpr (Words::kTrellis) {
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

template <typename Words, int kRows>
HWY_INLINE void gain_shape_values_page(const SideLayout& layout, const SideData& values, const float* p, float* out) {
  const hn::RebindToFloat<SumTag> df;
  const auto lanes = static_cast<int32_t>(hn::Lanes(df));
  const int32_t width = layout.low_plane().lanes;
  const int32_t blocks = Words::blocks(layout);
  prefetch_gains(layout, values);
  float gains[kPageSlots];
  read_gains(layout, values.data, gains);
  RoundedWeights<Words> weights[kRows];
  const int32_t* operands[kRows];
  float bias[kRows];
  for (int r = 0; r < kRows; ++r) {
    bias[r] = Words::kOffset * weights[r].round(p + r * kTileSlots, gains);
    operands[r] = weights[r].words;
  }
  typename Words::Before before;
  before.load(layout, values);
  for (int32_t channel = 0; channel < width; channel += lanes) {
    Products<kRows> products;
    products.clear();
    for (int32_t block = 0; block < blocks; ++block) {
      Words words;
      words.load_values(layout, values, before, block, channel);
      products.template add_block<Words, Side::kValues>(words, operands, block);
    }
    for (int r = 0; r < kRows; ++r) {
      float* at = out + r * width + channel;
      const auto sum = hn::Sub(hn::LoadU(df, at), hn::Set(df, bias[r]));
      hn::StoreU(hn::MulAdd(products.value(r), hn::Set(df, weights[r].step), sum), df, at);
    }
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
  for (int32_t page = 0; page < pages; ++page, p += kPageSlots) {
    if (rows == 1) {
      gain_shape_values_page<Words, 1>(layout, values[page], p, out);
    } else if (rows == 2) {
      gain_shape_values_page<Words, 2>(layout, values[page], p, out);
    } else {
      gain_shape_values_page<Words, 4>(layout, values[page], p, out);
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
        // The second and third of four bytes trade places.
        store_pair(df, number(hn::ShiftLeft<24>(quads), slot), number(hn::ShiftLeft<8>(quads), slot + 1), at);
        store_pair(df, number(hn::ShiftLeft<16>(quads), slot + 2), number(quads, slot + 3), at + ptrdiff_t{2} * width);
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
