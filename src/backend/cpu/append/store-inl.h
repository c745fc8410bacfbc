// Tokens to slots of FP16 pages: conversion, RoPE and the transposition into page layout.
#if defined(KVQ_APPEND_STORE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KVQ_APPEND_STORE_INL_H
#undef KVQ_APPEND_STORE_INL_H
#else
#define KVQ_APPEND_STORE_INL_H
#endif

#include "backend/cpu/append/float16-inl.h"
#include "backend/cpu/append/kernels.h"
#include "backend/cpu/vectors.h"
#include "core/float16.h"
#include "core/memory.h"
#include "formats/float16/layout.h"

#include <hwy/highway.h>

#include <bit>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Head sizes are multiples of 8, so vectors of 8 or 4 never cross the end of a row.
using RowTag = hn::CappedTag<float, 8>;
using RowVector = hn::Vec<RowTag>;

/// Prefetches into L2 the row read one page side later: rows of a head are too far apart for the hardware prefetcher.
HWY_INLINE void prefetch_later(const HeadRows& rows, int32_t i) {
  const std::byte* row = rows.later + static_cast<size_t>(i) * rows.later_stride;
  const size_t bytes = static_cast<size_t>(rows.head_dim) * (rows.dtype == KVQ_F32 ? 4 : 2);
  for (size_t at = 0; at < bytes; at += kDataAlignment) prefetch(row + at);
}

/// Reads a tensor's scalars as floats and tracks their magnitude.
template <kvq_dtype kType>
class Scalars {
  using Bits = std::conditional_t<kType == KVQ_F32, uint32_t, uint16_t>;
  using BitsTag = hn::Rebind<Bits, RowTag>;

 public:
  HWY_INLINE Scalars() : largest_(hn::Zero(BitsTag())) {}

  HWY_INLINE RowVector load(const std::byte* row, int32_t channel) {
    const BitsTag d;
    const auto bits = hn::LoadU(d, reinterpret_cast<const Bits*>(row) + channel);
    largest_ = hn::Max(largest_, hn::And(bits, hn::Set(d, static_cast<Bits>(Bits(~Bits{0}) >> 1U))));
    const RowTag df;
    if constexpr (kType == KVQ_F32) return hn::BitCast(df, bits);
    if constexpr (kType == KVQ_F16) return hn::PromoteTo(df, hn::BitCast(hn::Rebind<hwy::float16_t, RowTag>(), bits));
    if constexpr (kType == KVQ_BF16) {
      const hn::Rebind<uint32_t, RowTag> d32;
      return hn::BitCast(df, hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
    }
  }

  /// Magnitude bits order like the numbers, infinity and NaN last.
  HWY_INLINE bool certainly_fit() const {
    constexpr uint32_t kLimit = kType == KVQ_F32   ? std::bit_cast<uint32_t>(kCertainlyFits)
                                : kType == KVQ_F16 ? to_float16(kCertainlyFits)
                                                   : to_bfloat16(kCertainlyFits);
    const hn::RebindToSigned<BitsTag> d;  // signed: comparable on every instruction set
    const auto limit = hn::Set(d, static_cast<std::make_signed_t<Bits>>(kLimit));
    return hn::AllFalse(d, hn::Gt(hn::BitCast(d, largest_), limit));
  }

 private:
  hn::Vec<BitsTag> largest_;
};

/// Multiply pairs x + iy by cos + i·sin.
template <class D>
HWY_INLINE void rotate(D d, const float* cos, const float* sin, hn::Vec<D>& x, hn::Vec<D>& y) {
  const auto c = hn::LoadU(d, cos);
  const auto s = hn::LoadU(d, sin);
  const auto rotated = hn::Sub(hn::Mul(x, c), hn::Mul(y, s));
  y = hn::Add(hn::Mul(x, s), hn::Mul(y, c));
  x = rotated;
}

template <class D>
HWY_INLINE void rotate_pairs(D d, const Rope& rope, const float* angles, int32_t pair, float* head) {
  hn::Vec<D> x;
  hn::Vec<D> y;
  const float* cos = angles + pair;
  const float* sin = cos + rope.pairs();
  head += rope.begin;
  if (rope.pairing == KVQ_ROPE_HALF) {
    x = hn::LoadU(d, head + pair);
    y = hn::LoadU(d, head + rope.pairs() + pair);
    rotate(d, cos, sin, x, y);
    hn::StoreU(x, d, head + pair);
    hn::StoreU(y, d, head + rope.pairs() + pair);
  } else {
    hn::LoadInterleaved2(d, head + 2 * pair, x, y);
    rotate(d, cos, sin, x, y);
    hn::StoreInterleaved2(x, y, d, head + 2 * pair);
  }
}

HWY_INLINE void rotate_head(const Rope& rope, const float* angles, float* head) {
  const auto lanes = static_cast<int32_t>(hn::Lanes(RowTag()));
  int32_t pair = 0;
  for (; pair + lanes <= rope.pairs(); pair += lanes) rotate_pairs(RowTag(), rope, angles, pair, head);
  for (; pair < rope.pairs(); ++pair) rotate_pairs(hn::CappedTag<float, 1>(), rope, angles, pair, head);
}

/// Transposes words of four slots into the plane.
HWY_INLINE void store_four_slots(const uint32_t* rows, size_t stride, uint32_t* words) {
  const hn::FixedTag<uint32_t, 4> d;
  const hn::FixedTag<uint64_t, 2> d64;
  const auto a = hn::LoadU(d, rows);
  const auto b = hn::LoadU(d, rows + stride);
  const auto c = hn::LoadU(d, rows + 2 * stride);
  const auto e = hn::LoadU(d, rows + 3 * stride);
  const auto ab = hn::BitCast(d64, hn::InterleaveLower(d, a, b));
  const auto ce = hn::BitCast(d64, hn::InterleaveLower(d, c, e));
  const auto ab_high = hn::BitCast(d64, hn::InterleaveUpper(d, a, b));
  const auto ce_high = hn::BitCast(d64, hn::InterleaveUpper(d, c, e));
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, ab, ce)), d, words);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, ab, ce)), d, words + kPageSlots);
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, ab_high, ce_high)), d, words + size_t{2} * kPageSlots);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, ab_high, ce_high)), d, words + size_t{3} * kPageSlots);
}

/// Channels from `channel` on, moved by the rows' offsets and scaled.
template <class D>
HWY_INLINE hn::Vec<D> scaled(D d, const HeadRows& rows, int32_t channel, hn::Vec<D> x) {
  if (rows.rounds_first) {
    const hn::Rebind<hwy::float16_t, D> d16;
    x = hn::PromoteTo(d, hn::BitCast(d16, to_half(d, x)));
  }
  if (rows.offsets != nullptr) x = hn::Sub(x, hn::LoadU(d, rows.offsets + channel));
  if (rows.factors != nullptr) x = hn::Mul(x, hn::LoadU(d, rows.factors + channel));
  return x;
}

template <kvq_dtype kType>
bool store_keys_of(const HeadRows& rows, const Rope& rope, const float* angles, int32_t slot, uint16_t* plane) {
  constexpr size_t kStride = kMaxHeadDim / 2;
  constexpr int32_t kTogether = 16;  // rows: host threads may have small stacks
  const RowTag d;
  const hn::Rebind<uint16_t, RowTag> d16;
  const auto lanes = static_cast<int32_t>(hn::Lanes(d));
  HWY_ALIGN_MAX float head[kMaxHeadDim];
  HWY_ALIGN_MAX uint32_t staged[kTogether * kStride];  // [rows][channels / 2]
  Scalars<kType> scalars;
  for (int32_t begin = 0; begin < rows.count; begin += kTogether) {
    const int32_t count = rows.count - begin < kTogether ? rows.count - begin : kTogether;
    for (int32_t i = 0; i < count; ++i) {
      prefetch_later(rows, begin + i);
      const std::byte* row = rows.first + static_cast<size_t>(begin + i) * rows.stride;
      auto* numbers = reinterpret_cast<uint16_t*>(staged + static_cast<size_t>(i) * kStride);
      for (int32_t c = 0; c < rows.head_dim; c += lanes) hn::Store(scalars.load(row, c), d, head + c);
      rotate_head(rope, angles + static_cast<size_t>(begin + i) * rope.table_stride(), head);
      for (int32_t c = 0; c < rows.head_dim; c += lanes) {
        hn::Store(to_half(d, scaled(d, rows, c, hn::Load(d, head + c))), d16, numbers + c);
      }
    }
    auto* words = reinterpret_cast<uint32_t*>(plane) + slot + begin;
    const int32_t whole = count / 4 * 4;
    for (int32_t w = 0; w < rows.head_dim / 2; w += 4) {
      uint32_t* target = words + w * kPageSlots;
      for (int32_t i = 0; i < whole; i += 4) {
        store_four_slots(staged + static_cast<size_t>(i) * kStride + w, kStride, target + i);
      }
    }
    for (int32_t i = whole; i < count; ++i) {
      const uint32_t* from = staged + static_cast<size_t>(i) * kStride;
      for (int32_t w = 0; w < rows.head_dim / 2; ++w) words[w * kPageSlots + i] = from[w];
    }
  }
  return scalars.certainly_fit();
}

/// Writes one slot and keeps its neighbour.
template <kvq_dtype kType>
HWY_INLINE void store_value_slot(Scalars<kType>& scalars, const HeadRows& rows, const std::byte* row, int32_t slot,
                                 uint32_t* words) {
  const hn::Rebind<uint32_t, RowTag> d;
  const auto lanes = static_cast<int32_t>(hn::Lanes(d));
  const auto other = hn::Set(d, slot % 2 == 0 ? 0xFFFF0000U : 0xFFFFU);
  for (int32_t c = 0; c < rows.head_dim; c += lanes) {
    auto half = hn::PromoteTo(d, to_half(RowTag(), scaled(RowTag(), rows, c, scalars.load(row, c))));
    if (slot % 2 != 0) half = hn::ShiftLeft<16>(half);
    hn::StoreU(hn::Or(hn::And(hn::LoadU(d, words + c), other), half), d, words + c);
  }
}

template <kvq_dtype kType>
HWY_INLINE void store_value_pair(Scalars<kType>& scalars, const HeadRows& rows, const std::byte* even,
                                 uint32_t* words) {
  const hn::Rebind<uint16_t, RowTag> d;
  const hn::Rebind<uint32_t, RowTag> d32;
  const auto lanes = static_cast<int32_t>(hn::Lanes(d));
  const std::byte* odd = even + rows.stride;
  for (int32_t c = 0; c < rows.head_dim; c += lanes) {
    const auto low = hn::PromoteTo(d32, to_half(RowTag(), scaled(RowTag(), rows, c, scalars.load(even, c))));
    const auto high = hn::PromoteTo(d32, to_half(RowTag(), scaled(RowTag(), rows, c, scalars.load(odd, c))));
    hn::StoreU(hn::Or(low, hn::ShiftLeft<16>(high)), d32, words + c);
  }
}

template <kvq_dtype kType>
bool store_values_of(const HeadRows& rows, int32_t slot, uint16_t* plane) {
  const int32_t lanes = float16::plane(Side::kValues, rows.head_dim).lanes;
  const int32_t end = slot + rows.count;
  const std::byte* row = rows.first;
  Scalars<kType> scalars;
  while (slot < end) {
    uint32_t* words = reinterpret_cast<uint32_t*>(plane) + slot / 2 * lanes;
    const bool pair = slot % 2 == 0 && slot + 1 < end;
    if (pair) {
      store_value_pair(scalars, rows, row, words);
    } else {
      store_value_slot(scalars, rows, row, slot, words);
    }
    const int32_t stored = pair ? 2 : 1;
    for (int32_t i = 0; i < stored; ++i) prefetch_later(rows, slot - (end - rows.count) + i);
    slot += stored;
    row += static_cast<size_t>(stored) * rows.stride;
  }
  return scalars.certainly_fit();
}

inline bool store_keys(const HeadRows& rows, const Rope& rope, const float* angles, int32_t slot, uint16_t* plane) {
  if (rows.dtype == KVQ_F32) return store_keys_of<KVQ_F32>(rows, rope, angles, slot, plane);
  if (rows.dtype == KVQ_F16) return store_keys_of<KVQ_F16>(rows, rope, angles, slot, plane);
  return store_keys_of<KVQ_BF16>(rows, rope, angles, slot, plane);
}

inline bool store_values(const HeadRows& rows, int32_t slot, uint16_t* plane) {
  if (rows.dtype == KVQ_F32) return store_values_of<KVQ_F32>(rows, slot, plane);
  if (rows.dtype == KVQ_F16) return store_values_of<KVQ_F16>(rows, slot, plane);
  return store_values_of<KVQ_BF16>(rows, slot, plane);
}

}  // namespace kvq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
