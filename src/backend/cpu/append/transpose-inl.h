// Columns of a matrix of words as vectors.
#if defined(KVQ_APPEND_TRANSPOSE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KVQ_APPEND_TRANSPOSE_INL_H
#undef KVQ_APPEND_TRANSPOSE_INL_H
#else
#define KVQ_APPEND_TRANSPOSE_INL_H
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Blocks of four words, `stride` apart, as one vector.
template <class D>
HWY_INLINE hn::Vec<D> load_blocks(D d, const uint32_t* from, ptrdiff_t stride) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    (void)stride;
    return hn::LoadU(d, from);
  } else {
    const hn::Half<D> half;
    constexpr ptrdiff_t kBlocks = hn::MaxLanes(D()) / 8;
    return hn::Combine(d, load_blocks(half, from + kBlocks * stride, stride), load_blocks(half, from, stride));
  }
}

/// Four neighbouring columns of a matrix with `stride` words per row; lanes are rows.
template <class D>
HWY_INLINE void load_columns(D d, const uint32_t* from, ptrdiff_t stride, hn::Vec<D> (&columns)[4]) {
  const hn::Repartition<uint64_t, D> d64;
  const auto a = load_blocks(d, from, 4 * stride);
  const auto b = load_blocks(d, from + stride, 4 * stride);
  const auto c = load_blocks(d, from + 2 * stride, 4 * stride);
  const auto e = load_blocks(d, from + 3 * stride, 4 * stride);
  const auto ab = hn::BitCast(d64, hn::InterleaveLower(d, a, b));
  const auto ce = hn::BitCast(d64, hn::InterleaveLower(d, c, e));
  const auto ab_high = hn::BitCast(d64, hn::InterleaveUpper(d, a, b));
  const auto ce_high = hn::BitCast(d64, hn::InterleaveUpper(d, c, e));
  columns[0] = hn::BitCast(d, hn::InterleaveLower(d64, ab, ce));
  columns[1] = hn::BitCast(d, hn::InterleaveUpper(d64, ab, ce));
  columns[2] = hn::BitCast(d, hn::InterleaveLower(d64, ab_high, ce_high));
  columns[3] = hn::BitCast(d, hn::InterleaveUpper(d64, ab_high, ce_high));
}

}  // namespace kvq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
