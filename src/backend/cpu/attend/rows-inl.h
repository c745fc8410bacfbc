// Reductions of the vectors of up to four rows at once.
#if defined(KVQ_ATTEND_ROWS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KVQ_ATTEND_ROWS_INL_H
#undef KVQ_ATTEND_ROWS_INL_H
#else
#define KVQ_ATTEND_ROWS_INL_H
#endif

#include "backend/cpu/attend/kernels.h"

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
/// A number per row of a block.
using RowTag = hn::Full128<float>;
using RowVector = hn::Vec<RowTag>;

struct SumOfTwo {
  template <class V>
  static HWY_INLINE V of(V a, V b) {
    return hn::Add(a, b);
  }
};
struct MaximumOfTwo {
  template <class V>
  static HWY_INLINE V of(V a, V b) {
    return hn::Max(a, b);
  }
};

/// Lane r: row r's vector reduced to one number. Lanes of rows beyond kRows repeat the last.
template <class Reduce, class D, int kRows>
HWY_INLINE hn::Vec<hn::Full128<hn::TFromD<D>>> reduce_rows(D d, const hn::Vec<D> (&rows)[kRows]) {
  static_assert(kRows == 1 || kRows == 2 || kRows == 4);
  static_assert(sizeof(hn::TFromD<D>) == 4);
  const hn::Repartition<uint64_t, D> d64;
  const auto a = rows[0];
  const auto b = rows[kRows > 1 ? 1 : 0];
  const auto c = rows[kRows > 2 ? 2 : 0];
  const auto e = rows[kRows > 2 ? 3 : kRows - 1];
  const auto ab = hn::BitCast(d64, Reduce::of(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)));
  const auto ce = hn::BitCast(d64, Reduce::of(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e)));
  auto all =
      Reduce::of(hn::BitCast(d, hn::InterleaveLower(d64, ab, ce)), hn::BitCast(d, hn::InterleaveUpper(d64, ab, ce)));
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  const hn::Half<D> half;
  const auto halves = Reduce::of(hn::LowerHalf(half, all), hn::UpperHalf(half, all));
#if HWY_TARGET == HWY_AVX3
  const hn::Half<decltype(half)> quarter;
  return Reduce::of(hn::LowerHalf(quarter, halves), hn::UpperHalf(quarter, halves));
#else
  return halves;
#endif
#else
  return all;
#endif
}

/// How numbers up to a bound of each row are rounded to integers up to `top`.
struct RowRounding {
  HWY_ALIGN float factors[kBlockRows];  // to units
  RowVector steps;                      // units

  HWY_INLINE RowRounding(RowVector bounds, float top) : steps(hn::Mul(bounds, hn::Set(RowTag(), 1.0F / top))) {
    const RowTag d;
    hn::Store(hn::Div(hn::Set(d, top), hn::Max(bounds, hn::Set(d, 1e-30F))), d, factors);
  }
};

}  // namespace kvq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
