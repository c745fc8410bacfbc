// Integer pages: scales are folded into the other operand.
//
// Small codes meet bytes: the folded operand is rounded with one step per row and page (or group), which is less than
// the rounding of the codes themselves. Codes are taken relative to the middle of their range, so that this rounding
// meets small numbers: with f = δ·i + ε, Σ f·code + Σ x·min = δ·Σ i·code + Σ x·(min + mid·scale) − mid·δ·Σ i +
// Σ ε·(code − mid), and the last sum is neglected. Codes of 8 bits are converted in registers for FP32 products.
#if defined(KVQ_ATTEND_INTEGER_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KVQ_ATTEND_INTEGER_INL_H
#undef KVQ_ATTEND_INTEGER_INL_H
#else
#define KVQ_ATTEND_INTEGER_INL_H
#endif

#include "backend/cpu/attend/kernels.h"
#include "backend/cpu/attend/latent-inl.h"
#include "backend/cpu/attend/products-inl.h"
#include "backend/cpu/attend/rows-inl.h"
#include "core/float16.h"
#include "core/memory.h"
#include "formats/page_fields.h"

#include <hwy/highway.h>

#include <algorithm>
#include <bit>

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using IntegerTag = hn::ScalableTag<uint32_t>;
using IntegerVector = hn::Vec<IntegerTag>;
using CodeTag = hn::ScalableTag<float>;
using CodeVector = hn::Vec<CodeTag>;

/// One vector of words of a page side, for the next block of reduction elements.
template <int kBits>
struct Words {
  IntegerVector low;
  IntegerVector high;  // 3 bits only: the high-bit plane, shifted so that element e of the block is at field e

  /// `block`: block of the low plane, `lane`: first lane.
  HWY_INLINE void load(const SideLayout& layout, const SideData& side, int32_t block, int32_t lane) {
    const IntegerTag d;
    const int32_t lanes = layout.low_plane().lanes;
    const size_t offset = sizeof(uint32_t) * static_cast<size_t>(block * lanes + lane);
    low = hn::LoadU(d, reinterpret_cast<const uint32_t*>(side.data + offset));
    prefetch(side.later + offset);
    if constexpr (kBits == 3) {
      const size_t high_offset =
          layout.high_offset() + sizeof(uint32_t) * static_cast<size_t>(block / 2 * lanes + lane);
      high = hn::LoadU(d, reinterpret_cast<const uint32_t*>(side.data + high_offset));
      prefetch(side.later + high_offset);
      if (block % 2 != 0) high = hn::ShiftRight<4>(high);
    }
  }

  template <int kElement>
  HWY_INLINE CodeVector code() const {
    constexpr int kFieldBits = kBits == 3 ? 2 : kBits;
    constexpr int kShift = 8 * (kElement % 4) + kFieldBits * (kElement / 4);
    const IntegerTag d;
    IntegerVector bits = hn::And(hn::ShiftRight<kShift>(low), hn::Set(d, (1U << kFieldBits) - 1U));
    if constexpr (kBits == 3) {
      constexpr int kHighShift = 8 * (kElement % 4) + kElement / 4;
      const IntegerVector bit = hn::And(hn::ShiftRight<kHighShift>(high), hn::Set(d, 1U));
      bits = hn::Or(bits, hn::ShiftLeft<2>(bit));
    }
    return hn::ConvertTo(CodeTag(), hn::BitCast(hn::RebindToSigned<IntegerTag>(), bits));
  }
};

/// acc[r][a] += code_e(words[a]) · factors[r][e] for the elements e of one block.
template <int kElement, int kBits, int kRows, int kVectors>
HWY_INLINE void multiply_block(const Words<kBits> (&words)[kVectors], const float* factors, size_t stride,
                               CodeVector (&acc)[kRows][kVectors]) {
  constexpr int kBlock = 32 / (kBits == 3 ? 2 : kBits);
  if constexpr (kElement < kBlock) {
    CodeVector codes[kVectors];
    for (int a = 0; a < kVectors; ++a) codes[a] = words[a].template code<kElement>();
    for (int r = 0; r < kRows; ++r) {
      const CodeVector factor = hn::Set(CodeTag(), factors[static_cast<size_t>(r) * stride + kElement]);
      for (int a = 0; a < kVectors; ++a) acc[r][a] = hn::MulAdd(codes[a], factor, acc[r][a]);
    }
    multiply_block<kElement + 1, kBits, kRows, kVectors>(words, factors, stride, acc);
  }
}

HWY_INLINE void prefetch_scales(const SideLayout& layout, const SideData& side) {
  for (size_t i = layout.scale_offset(); i < layout.bytes(); i += kDataAlignment) prefetch(side.later + i);
}

/// factors[i] = x[i] · scale[i] and the sum of x[i] · min[i].
HWY_INLINE float fold_scales(const float* x, const uint16_t* scales, const uint16_t* minima, int32_t n,
                             float* factors) {
  const CodeTag d;
  const hn::Rebind<hwy::float16_t, CodeTag> dh;
  const auto lanes = static_cast<int32_t>(hn::Lanes(d));
  const auto* scale = reinterpret_cast<const hwy::float16_t*>(scales);
  const auto* minimum = reinterpret_cast<const hwy::float16_t*>(minima);
  auto sum = hn::Zero(d);
  int32_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto values = hn::LoadU(d, x + i);
    hn::StoreU(hn::Mul(values, hn::PromoteTo(d, hn::LoadU(dh, scale + i))), d, factors + i);
    sum = hn::MulAdd(values, hn::PromoteTo(d, hn::LoadU(dh, minimum + i)), sum);
  }
  const hn::CappedTag<float, 1> d1;
  const hn::Rebind<hwy::float16_t, decltype(d1)> dh1;
  auto total = hn::Set(d1, hn::GetLane(hn::SumOfLanes(d, sum)));
  for (; i < n; ++i) {
    const auto value = hn::Set(d1, x[i]);
    hn::StoreU(hn::Mul(value, hn::PromoteTo(d1, hn::LoadU(dh1, scale + i))), d1, factors + i);
    total = hn::MulAdd(value, hn::PromoteTo(d1, hn::LoadU(dh1, minimum + i)), total);
  }
  return hn::GetLane(total);
}

template <int kBits, int kRows>
HWY_INLINE void float_keys_page(int32_t head_dim, const SideData& keys, const float* q, float* scores) {
  constexpr int kBlock = 32 / (kBits == 3 ? 2 : kBits);
  constexpr int kVectors = 2;
  constexpr size_t kStride = kMaxHeadDim + 32;  // room for the padding of the last block
  const CodeTag d;
  const auto lanes = static_cast<int32_t>(hn::Lanes(d));
  const SideLayout layout{.side = Side::kKeys, .code = CodeType::integer(kBits), .head_dim = head_dim};
  const auto* scales = reinterpret_cast<const uint16_t*>(keys.data + layout.scale_offset());
  const auto* minima = reinterpret_cast<const uint16_t*>(keys.data + layout.minimum_offset());

  prefetch_scales(layout, keys);

  HWY_ALIGN float factors[kRows][kStride];
  float bias[kRows];
  for (int r = 0; r < kRows; ++r) {
    bias[r] = fold_scales(q + r * head_dim, scales, minima, head_dim, factors[r]);
    std::fill(factors[r] + head_dim, factors[r] + layout.low_plane().blocks() * kBlock, 0.0F);
  }
  for (int32_t slot = 0; slot < kPageSlots; slot += kVectors * lanes) {
    CodeVector acc[kRows][kVectors];
    for (int r = 0; r < kRows; ++r) {
      for (auto& each : acc[r]) each = hn::Set(d, bias[r]);
    }
    for (int32_t block = 0; block < layout.low_plane().blocks(); ++block) {
      Words<kBits> words[kVectors];
      for (int a = 0; a < kVectors; ++a) words[a].load(layout, keys, block, slot + a * lanes);
      multiply_block<0, kBits, kRows, kVectors>(words, &factors[0][block * kBlock], kStride, acc);
    }
    for (int r = 0; r < kRows; ++r) {
      for (int a = 0; a < kVectors; ++a) hn::StoreU(acc[r][a], d, scores + r * kTileSlots + slot + a * lanes);
    }
  }
}

template <int kBits, int kRows, int kVectors>
HWY_INLINE void float_values_chunk(const SideLayout& layout, const SideData& values, int32_t channel,
                                   const float (&factors)[kRows][kPageSlots], const float (&bias)[kRows], float* out) {
  constexpr int kBlock = 32 / (kBits == 3 ? 2 : kBits);
  const CodeTag d;
  const auto lanes = static_cast<int32_t>(hn::Lanes(d));
  const int32_t width = layout.low_plane().lanes;
  CodeVector acc[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int a = 0; a < kVectors; ++a) {
      acc[r][a] = hn::Add(hn::LoadU(d, out + r * width + channel + a * lanes), hn::Set(d, bias[r]));
    }
  }
  for (int32_t block = 0; block < layout.low_plane().blocks(); ++block) {
    Words<kBits> words[kVectors];
    for (int a = 0; a < kVectors; ++a) words[a].load(layout, values, block, channel + a * lanes);
    multiply_block<0, kBits, kRows, kVectors>(words, &factors[0][block * kBlock], kPageSlots, acc);
  }
  for (int r = 0; r < kRows; ++r) {
    for (int a = 0; a < kVectors; ++a) hn::StoreU(acc[r][a], d, out + r * width + channel + a * lanes);
  }
}

template <int kBits, int kRows>
HWY_INLINE void float_values_rows(const SideShape& shape, const SideData* values, int32_t pages, const float* p,
                                  float* out) {
  const auto lanes = static_cast<int32_t>(hn::Lanes(CodeTag()));
  const SideLayout layout = shape.layout(Side::kValues, CodeType::integer(kBits));
  const int32_t width = layout.low_plane().lanes;
  for (int32_t page = 0; page < pages; ++page) {
    const SideData& side = values[page];
    const auto* scales = reinterpret_cast<const uint16_t*>(side.data + layout.scale_offset());
    const auto* minima = reinterpret_cast<const uint16_t*>(side.data + layout.minimum_offset());
    prefetch_scales(layout, side);
    for (int32_t group = 0; group < layout.value_groups(); ++group) {
      HWY_ALIGN float factors[kRows][kPageSlots];
      float bias[kRows];
      for (int r = 0; r < kRows; ++r) {
        bias[r] = fold_scales(p + r * kTileSlots + page * kPageSlots, scales + group * kPageSlots,
                              minima + group * kPageSlots, kPageSlots, factors[r]);
      }
      const int32_t end = std::min((group + 1) * shape.group, width);
      int32_t channel = group * shape.group;
      for (; channel + 2 * lanes <= end; channel += 2 * lanes) {
        float_values_chunk<kBits, kRows, 2>(layout, side, channel, factors, bias, out);
      }
      for (; channel < end; channel += lanes) {
        float_values_chunk<kBits, kRows, 1>(layout, side, channel, factors, bias, out);
      }
    }
  }
}

/// The middle of the range of codes.
template <int kBits>
inline constexpr float kMiddle = static_cast<float>((1 << kBits) - 1) / 2.0F;

/// Scales of channels or slots from `at` on, and the values of codes in the middle of their range.
template <int kBits>
struct FoldedScales {
  CodeVector scale;
  CodeVector middle;

  HWY_INLINE void load(const uint16_t* scales, const uint16_t* minima, int32_t at) {
    const CodeTag d;
    const hn::Rebind<hwy::float16_t, CodeTag> dh;
    scale = hn::PromoteTo(d, hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(scales) + at));
    const auto minimum = hn::PromoteTo(d, hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(minima) + at));
    middle = hn::MulAdd(hn::Set(d, kMiddle<kBits>), scale, minimum);
  }
};

/// A number whose low bits are the integer nearest to x · factor.
HWY_INLINE CodeVector nearest(CodeVector x, CodeVector factor) {
  return hn::MulAdd(x, factor, hn::Set(CodeTag(), kToLowBits));
}

/// Queries of kRows rows folded with the scales of a page of keys.
template <int kBits, int kRows>
class KeyOperands {
 public:
  HWY_INLINE void fold(const float* q, int32_t head_dim, const uint16_t* scales, const uint16_t* minima) {
    const CodeTag d;
    const RowTag rows;
    const auto lanes = static_cast<int32_t>(hn::Lanes(d));
    HWY_ALIGN float products[kRows][kMaxHeadDim + 32];
    CodeVector largest[kRows];
    CodeVector biases[kRows];
    for (int r = 0; r < kRows; ++r) {
      std::fill(products[r] + head_dim, products[r] + (head_dim + 31) / 32 * 32, 0.0F);
      largest[r] = biases[r] = hn::Zero(d);
    }
    int32_t at = 0;
    for (; at + lanes <= head_dim; at += lanes) {
      add(q + at, head_dim, scales + at, minima + at, at, products, largest, biases);
    }
    if (at < head_dim) {  // half a vector, as head sizes are multiples of 8
      constexpr int32_t kHalf = 8;
      HWY_ALIGN float last[kRows][2 * kHalf] = {};
      uint16_t last_scales[2 * kHalf] = {};
      uint16_t last_minima[2 * kHalf] = {};
      for (int r = 0; r < kRows; ++r) std::copy_n(q + r * head_dim + at, kHalf, last[r]);
      std::copy_n(scales + at, kHalf, last_scales);
      std::copy_n(minima + at, kHalf, last_minima);
      add(last[0], 2 * kHalf, last_scales, last_minima, at, products, largest, biases);
    }
    const RowRounding rounding(reduce_rows<MaximumOfTwo>(d, largest), 127.0F);
    hn::Store(rounding.steps, rows, step);
    SumVector sums[kRows];
    for (int r = 0; r < kRows; ++r) {
      sums[r] = hn::Zero(SumTag());
      auto* bytes = reinterpret_cast<int8_t*>(words[r]);
      const auto factor = hn::Set(d, rounding.factors[r]);
      for (at = 0; at < head_dim; at += 32) {
        CodeVector rounded[kVectorsOf32];
        for (int a = 0; a < kVectorsOf32; ++a) {
          rounded[a] = nearest(hn::Load(d, products[r] + at + a * lanes), factor);
        }
        store_bytes(rounded, bytes + at, sums[r]);
      }
      std::fill(bytes + at, bytes + at + 32, int8_t{0});
    }
    const RowVector totals = hn::ConvertTo(rows, reduce_rows<SumOfTwo>(SumTag(), sums));
    const RowVector middles = hn::Mul(rounding.steps, hn::Set(rows, kMiddle<kBits>));
    hn::Store(hn::NegMulAdd(middles, totals, reduce_rows<SumOfTwo>(d, biases)), rows, bias);
  }

  HWY_ALIGN int32_t words[kRows][(kMaxHeadDim + 64) / 4];  // room for the padding of the last block
  HWY_ALIGN float step[kBlockRows];
  HWY_ALIGN float bias[kBlockRows];

 private:
  /// Adds a vector of channels, from `at` on.
  static HWY_INLINE void add(const float* q, int32_t stride, const uint16_t* scales, const uint16_t* minima, int32_t at,
                             float (&products)[kRows][kMaxHeadDim + 32], CodeVector (&largest)[kRows],
                             CodeVector (&biases)[kRows]) {
    const CodeTag d;
    FoldedScales<kBits> of;
    of.load(scales, minima, 0);
    for (int r = 0; r < kRows; ++r) {
      const auto x = hn::LoadU(d, q + r * stride);
      const auto product = hn::Mul(x, of.scale);
      hn::Store(product, d, products[r] + at);
      largest[r] = hn::Max(largest[r], hn::Abs(product));
      biases[r] = hn::MulAdd(x, of.middle, biases[r]);
    }
  }
};

template <int kBits, int kRows>
HWY_INLINE void byte_keys_page(const SideLayout& layout, const SideData& keys,
                               const KeyOperands<kBits, kRows>& operands, float* scores) {
  using Words = ScalarWords<kBits>;
  constexpr int kVectors = kVectorsOfProducts<Words>;
  const CodeTag d;
  const auto lanes = static_cast<int32_t>(hn::Lanes(d));
  const int32_t* words[kRows];
  for (int r = 0; r < kRows; ++r) words[r] = operands.words[r];
  const typename Words::Keys load{layout, keys};
  for (int32_t slot = 0; slot < kPageSlots; slot += kVectors * lanes) {
    Products<kRows, kVectors> products;
    products.template run<Words, Side::kKeys>(Words::blocks(layout), words, load, slot);
    for (int r = 0; r < kRows; ++r) {
      for (int a = 0; a < kVectors; ++a) {
        const auto score = hn::MulAdd(products.value(r, a), hn::Set(d, operands.step[r]), hn::Set(d, operands.bias[r]));
        hn::StoreU(score, d, scores + r * kTileSlots + slot + a * lanes);
      }
    }
  }
}

template <int kBits, int kRows>
HWY_INLINE void byte_keys_rows(int32_t head_dim, const SideData* keys, int32_t pages, const float* q, float* scores) {
  const SideLayout layout{.side = Side::kKeys, .code = CodeType::integer(kBits), .head_dim = head_dim};
  // Operands of the next page are made before this one's products, which do not wait for them.
  KeyOperands<kBits, kRows> operands[2];
  const auto fold = [&](int32_t page) HWY_ATTR {
    const SideData& side = keys[page];
    prefetch_scales(layout, side);
    operands[page % 2].fold(q, head_dim, reinterpret_cast<const uint16_t*>(side.data + layout.scale_offset()),
                            reinterpret_cast<const uint16_t*>(side.data + layout.minimum_offset()));
  };
  fold(0);
  for (int32_t page = 0; page < pages; ++page) {
    if (page + 1 < pages) fold(page + 1);
    byte_keys_page<kBits, kRows>(layout, keys[page], operands[page % 2], scores + page * kPageSlots);
  }
}

/// Probabilities of kRows rows folded with the scales of a page of values, of one group of channels.
template <int kBits, int kRows>
struct ValueOperands {
  HWY_ALIGN int32_t words[kRows][kPageSlots / 4];
  HWY_ALIGN float step[kBlockRows];

  /// Returns the part of the sums that is the same for all channels. `most`: the largest probability of each row.
  HWY_INLINE RowVector fold(const float* p, RowVector most, const uint16_t* scales, const uint16_t* minima) {
    const CodeTag d;
    const RowTag rows;
    const auto lanes = static_cast<int32_t>(hn::Lanes(d));
    const hn::Rebind<hwy::float16_t, CodeTag> dh;
    auto largest = hn::Zero(d);
    for (int32_t at = 0; at < kPageSlots; at += lanes) {
      const auto* scale = reinterpret_cast<const hwy::float16_t*>(scales) + at;
      largest = hn::Max(largest, hn::PromoteTo(d, hn::LoadU(dh, scale)));
    }
    const auto largest_scale = hn::Set(rows, hn::GetLane(hn::MaxOfLanes(d, largest)));
    const RowRounding rounding(hn::Mul(most, largest_scale), 255.0F);
    hn::Store(rounding.steps, rows, step);
    CodeVector biases[kRows];
    SumVector sums[kRows];
    for (int r = 0; r < kRows; ++r) {
      biases[r] = hn::Zero(d);
      sums[r] = hn::Zero(SumTag());
    }
    FoldedScales<kBits> of[kVectorsOf32];
    for (int a = 0; a < kVectorsOf32; ++a) of[a].load(scales, minima, a * lanes);
    for (int r = 0; r < kRows; ++r) {
      const auto factor = hn::Set(d, rounding.factors[r]);
      CodeVector rounded[kVectorsOf32];
      for (int a = 0; a < kVectorsOf32; ++a) {
        const auto x = hn::LoadU(d, p + r * kTileSlots + a * lanes);
        biases[r] = hn::MulAdd(x, of[a].middle, biases[r]);
        rounded[a] = nearest(hn::Mul(x, of[a].scale), factor);
      }
      store_bytes(rounded, reinterpret_cast<uint8_t*>(words[r]), sums[r]);
    }
    const RowVector totals = hn::ConvertTo(rows, reduce_rows<SumOfTwo>(SumTag(), sums));
    const RowVector middles = hn::Mul(rounding.steps, hn::Set(rows, kMiddle<kBits>));
    return hn::NegMulAdd(middles, totals, reduce_rows<SumOfTwo>(d, biases));
  }
};

template <int kBits, int kRows, int kVectors>
HWY_INLINE void byte_values_chunk(int32_t width, const typename ScalarWords<kBits>::Values& load, int32_t channel,
                                  const ValueOperands<kBits, kRows>& operands, float* out) {
  using Words = ScalarWords<kBits>;
  const CodeTag d;
  const auto lanes = static_cast<int32_t>(hn::Lanes(d));
  const int32_t* words[kRows];
  for (int r = 0; r < kRows; ++r) words[r] = operands.words[r];
  Products<kRows, kVectors> products;
  products.template run<Words, Side::kValues>(kBits == 3 ? 2 : kBits, words, load, channel);
  for (int r = 0; r < kRows; ++r) {
    for (int a = 0; a < kVectors; ++a) {
      float* at = out + r * width + channel + a * lanes;
      hn::StoreU(hn::MulAdd(products.value(r, a), hn::Set(d, operands.step[r]), hn::LoadU(d, at)), d, at);
    }
  }
}

/// The largest probability of each row in a page.
template <int kRows>
HWY_INLINE RowVector largest_of_rows(const float* p) {
  const CodeTag d;
  const auto lanes = static_cast<int32_t>(hn::Lanes(d));
  CodeVector largest[kRows];
  for (int r = 0; r < kRows; ++r) {
    largest[r] = hn::Zero(d);
    for (int32_t at = 0; at < kPageSlots; at += lanes) {
      largest[r] = hn::Max(largest[r], hn::LoadU(d, p + r * kTileSlots + at));
    }
  }
  return reduce_rows<MaximumOfTwo>(d, largest);
}

template <int kBits, int kRows>
HWY_INLINE void byte_values_rows(const SideShape& shape, const SideData* values, int32_t pages, const float* p,
                                 float* out) {
  const CodeTag d;
  const RowTag rows;
  const auto lanes = static_cast<int32_t>(hn::Lanes(d));
  const SideLayout layout = shape.layout(Side::kValues, CodeType::integer(kBits));
  const int32_t width = layout.low_plane().lanes;
  const int32_t groups = layout.value_groups();
  const int group_shift = std::countr_zero(static_cast<uint32_t>(shape.group));
  HWY_ALIGN float biases[kMaxHeadDim / 32][kBlockRows] = {};
  for (int32_t page = 0; page < pages; ++page, p += kPageSlots) {
    const SideData& side = values[page];
    const auto* scales = reinterpret_cast<const uint16_t*>(side.data + layout.scale_offset());
    const auto* minima = reinterpret_cast<const uint16_t*>(side.data + layout.minimum_offset());
    prefetch_scales(layout, side);
    const RowVector most = largest_of_rows<kRows>(p);
    ValueOperands<kBits, kRows> operands[kMaxHeadDim / 32];
    for (int32_t group = 0; group < groups; ++group) {
      const int32_t at = group * kPageSlots;
      float* bias = biases[group];
      hn::Store(hn::Add(hn::Load(rows, bias), operands[group].fold(p, most, scales + at, minima + at)), rows, bias);
    }
    const typename ScalarWords<kBits>::Values load{layout, side};
    int32_t channel = 0;
    constexpr int kVectors = kVectorsOfProducts<ScalarWords<kBits>>;
    for (; channel + kVectors * lanes <= width; channel += kVectors * lanes) {
      byte_values_chunk<kBits, kRows, kVectors>(width, load, channel, operands[channel >> group_shift], out);
    }
    for (; channel < width; channel += lanes) {
      byte_values_chunk<kBits, kRows, 1>(width, load, channel, operands[channel >> group_shift], out);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int32_t channel = 0; channel < width; channel += lanes) {
      float* at = out + r * width + channel;
      hn::StoreU(hn::Add(hn::LoadU(d, at), hn::Set(d, biases[channel >> group_shift][r])), d, at);
    }
  }
}

/// Codes of 8 bits would need operands of 16: FP32 is as fast.
template <int kBits>
inline constexpr bool kMeetsBytes = kBits < 8;

template <int kBits, int kRows>
HWY_INLINE void keys_of_rows(int32_t head_dim, const SideData* keys, int32_t pages, const float* q, float* scores) {
  if constexpr (kMeetsBytes<kBits>) {
    byte_keys_rows<kBits, kRows>(head_dim, keys, pages, q, scores);
  } else {
    for (int32_t page = 0; page < pages; ++page) {
      float_keys_page<kBits, kRows>(head_dim, keys[page], q, scores + page * kPageSlots);
    }
  }
}

template <int kBits, int kRows>
HWY_INLINE void values_of_rows(const SideShape& shape, const SideData* values, int32_t pages, const float* p,
                               float* out) {
  if constexpr (kMeetsBytes<kBits>) {
    byte_values_rows<kBits, kRows>(shape, values, pages, p, out);
  } else {
    float_values_rows<kBits, kRows>(shape, values, pages, p, out);
  }
}

template <int kBits>
void integer_keys(const SideShape& shape, const SideData* keys, int32_t pages, int32_t rows, const QueryRows& q,
                  float* scores) {
  if (rows == 1) {
    keys_of_rows<kBits, 1>(shape.head_dim, keys, pages, q.floats, scores);
  } else if (rows == 2) {
    keys_of_rows<kBits, 2>(shape.head_dim, keys, pages, q.floats, scores);
  } else {
    keys_of_rows<kBits, 4>(shape.head_dim, keys, pages, q.floats, scores);
  }
}

template <int kBits>
void integer_values(const SideShape& shape, const SideData* values, int32_t pages, int32_t rows, const float* p,
                    float* out) {
  if (rows == 1) {
    values_of_rows<kBits, 1>(shape, values, pages, p, out);
  } else if (rows == 2) {
    values_of_rows<kBits, 2>(shape, values, pages, p, out);
  } else {
    values_of_rows<kBits, 4>(shape, values, pages, p, out);
  }
}

/// Slots of a block from kElement on as FP16 numbers. `scales`, `minima`: of the block's slots.
template <int kElement, int kBits>
HWY_INLINE void store_numbers(const Words<kBits>& words, const float* scales, const float* minima, int32_t width,
                              uint16_t* out) {
  constexpr int kBlock = 32 / (kBits == 3 ? 2 : kBits);
  if constexpr (kElement < kBlock) {
    const CodeTag d;
    const auto number = [&](CodeVector code, int element) HWY_ATTR {
      return hn::MulAdd(code, hn::Set(d, scales[element]), hn::Set(d, minima[element]));
    };
    store_pair(d, number(words.template code<kElement>(), kElement),
               number(words.template code<kElement + 1>(), kElement + 1),
               out + static_cast<ptrdiff_t>(kElement) * width);
    store_numbers<kElement + 2, kBits>(words, scales, minima, width, out);
  }
}

template <int kBits>
void integer_as_keys(const SideShape& shape, const std::byte* values, std::byte* keys, std::byte* room) {
  constexpr int32_t kBlock = 32 / (kBits == 3 ? 2 : kBits);
  const SideLayout layout = shape.layout(Side::kValues, CodeType::integer(kBits));
  const int32_t width = layout.low_plane().lanes;
  const auto lanes = static_cast<int32_t>(hn::Lanes(CodeTag()));
  auto* numbers = reinterpret_cast<uint16_t*>(room);
  float scales[kPageSlots];
  float minima[kPageSlots];
  for (int32_t channel = 0; channel < width; channel += lanes) {
    // Lanes beyond the head are padding.
    for (int32_t slot = 0; channel % shape.group == 0 && channel < shape.head_dim && slot < kPageSlots; ++slot) {
      const size_t at = sizeof(uint16_t) * static_cast<size_t>(layout.scale_index(slot, channel));
      scales[slot] = from_float16(*reinterpret_cast<const uint16_t*>(values + layout.scale_offset() + at));
      minima[slot] = from_float16(*reinterpret_cast<const uint16_t*>(values + layout.minimum_offset() + at));
    }
    for (int32_t block = 0; block < layout.low_plane().blocks(); ++block) {
      Words<kBits> words;
      words.load(layout, {values, values}, block, channel);
      const int32_t slot = block * kBlock;
      // A word of the plane has the numbers of two slots.
      store_numbers<0, kBits>(words, scales + slot, minima + slot, width,
                              numbers + static_cast<ptrdiff_t>(slot) * width + ptrdiff_t{2} * channel);
    }
  }
  transpose_float16(shape.head_dim, room, keys);
}

}  // namespace kvq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
