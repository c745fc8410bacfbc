// Integer pages with FP32 products: codes are converted in registers, scales are folded into the other operand.
#if defined(KVQ_ATTEND_INTEGER_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KVQ_ATTEND_INTEGER_INL_H
#undef KVQ_ATTEND_INTEGER_INL_H
#else
#define KVQ_ATTEND_INTEGER_INL_H
#endif

#include "backend/cpu/attend/kernels.h"
#include "backend/cpu/attend/latent-inl.h"
#include "core/float16.h"
#include "core/memory.h"
#include "formats/page_fields.h"

#include <hwy/highway.h>

#include <algorithm>

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
HWY_INLINE void integer_keys_rows(int32_t head_dim, const SideData& keys, const float* q, float* scores) {
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
HWY_INLINE void integer_values_chunk(const SideLayout& layout, const SideData& values, int32_t channel,
                                     const float (&factors)[kRows][kPageSlots], const float (&bias)[kRows],
                                     float* out) {
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
HWY_INLINE void integer_values_rows(const SideShape& shape, const SideData* values, int32_t pages, const float* p,
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
        integer_values_chunk<kBits, kRows, 2>(layout, side, channel, factors, bias, out);
      }
      for (; channel < end; channel += lanes) {
        integer_values_chunk<kBits, kRows, 1>(layout, side, channel, factors, bias, out);
      }
    }
  }
}

template <int kBits>
void integer_keys(const SideShape& shape, const SideData& keys, int32_t rows, const QueryRows& q, float* scores) {
  if (rows == 1) {
    integer_keys_rows<kBits, 1>(shape.head_dim, keys, q.floats, scores);
  } else if (rows == 2) {
    integer_keys_rows<kBits, 2>(shape.head_dim, keys, q.floats, scores);
  } else {
    integer_keys_rows<kBits, 4>(shape.head_dim, keys, q.floats, scores);
  }
}

template <int kBits>
void integer_values(const SideShape& shape, const SideData* values, int32_t pages, int32_t rows, const float* p,
                    float* out) {
  if (rows == 1) {
    integer_values_rows<kBits, 1>(shape, values, pages, p, out);
  } else if (rows == 2) {
    integer_values_rows<kBits, 2>(shape, values, pages, p, out);
  } else {
    integer_values_rows<kBits, 4>(shape, values, pages, p, out);
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
