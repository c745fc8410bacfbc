// Products of levels with activations.
#if defined(KVQ_LINEAR_QUADS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KVQ_LINEAR_QUADS_INL_H
#undef KVQ_LINEAR_QUADS_INL_H
#else
#define KVQ_LINEAR_QUADS_INL_H
#endif

#include "backend/cpu/byte_products-inl.h"
#include "backend/cpu/linear/kernels.h"
#include "weights/codebook.h"

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
/// Levels of four columns of a tile, and their vectors.
inline constexpr int32_t kQuadBytes = 4 * weights::kTileRows;
inline constexpr int32_t kQuadVectors = kQuadBytes / static_cast<int32_t>(hn::MaxLanes(ByteTag()));

/// Added to levels where an instruction multiplies unsigned bytes by signed ones; sums get it times the activations'
/// sum.
#if defined(KVQ_DOT_PRODUCTS) && HWY_ARCH_X86
inline constexpr int32_t kLevelBias = weights::kZeroPoint;
#else
inline constexpr int32_t kLevelBias = 0;
#endif

/// Lane i: sum plus the products of bytes 4i to 4i + 3 of levels + kLevelBias, and activations, −127 to 127. Two
/// products with levels of −127 to 127 fit 16 bits.
HWY_INLINE SumVector add_products(ByteVector levels, ByteVector x, SumVector sum) {
#if defined(KVQ_DOT_PRODUCTS) && HWY_ARCH_X86
  return add_mixed_products(levels, x, sum);
#elif defined(KVQ_DOT_PRODUCTS)
  return add_signed_products(levels, x, sum);
#else
  return add_neighbours(signed_pair_products(levels, x), sum);
#endif
}

}  // namespace kvq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
