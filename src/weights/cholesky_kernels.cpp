// Compiled once per Highway target: this file includes itself through foreach_target.h. No product is fused with a sum,
// as in trellis_kernels.cpp.
#include "weights/cholesky.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "weights/cholesky_kernels.cpp"
#include <hwy/foreach_target.h>  // must precede highway.h

#include <hwy/highway.h>

#include "core/target_tables.h"

HWY_BEFORE_NAMESPACE();
namespace kvq::weights::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using FloatTag = hn::ScalableTag<float>;
using FloatVector = hn::Vec<FloatTag>;

/// Subtract from one row. \param factors  in a column of it
HWY_INLINE void subtract_row(const float* above, const float* factors, size_t n, size_t count, float* to) {
  const FloatTag d;
  for (size_t j = 0; j < kFactorBlock; j += hn::Lanes(d)) {
    FloatVector sum = hn::LoadU(d, to + j);
    for (size_t k = 0; k < count; ++k) {
      sum = hn::Sub(sum, hn::Mul(hn::Set(d, factors[k * n]), hn::LoadU(d, above + k * n + j)));
    }
    hn::StoreU(sum, d, to + j);
  }
}

HWY_INLINE void subtract_four(const float* above, const float* factors, size_t n, size_t count, float* to) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  static_assert(2 * HWY_MAX_BYTES / sizeof(float) <= kFactorBlock);
  for (size_t j = 0; j < kFactorBlock; j += 2 * lanes) {
    float* at = to + j;
    FloatVector a0 = hn::LoadU(d, at), a1 = hn::LoadU(d, at + lanes);
    FloatVector b0 = hn::LoadU(d, at + n), b1 = hn::LoadU(d, at + n + lanes);
    FloatVector c0 = hn::LoadU(d, at + 2 * n), c1 = hn::LoadU(d, at + 2 * n + lanes);
    FloatVector d0 = hn::LoadU(d, at + 3 * n), d1 = hn::LoadU(d, at + 3 * n + lanes);
    for (size_t k = 0; k < count; ++k) {
      const FloatVector left = hn::LoadU(d, above + k * n + j);
      const FloatVector right = hn::LoadU(d, above + k * n + j + lanes);
      const float* factor = factors + k * n;
      const FloatVector fa = hn::Set(d, factor[0]), fb = hn::Set(d, factor[1]);
      const FloatVector fc = hn::Set(d, factor[2]), fd = hn::Set(d, factor[3]);
      a0 = hn::Sub(a0, hn::Mul(fa, left)), a1 = hn::Sub(a1, hn::Mul(fa, right));
      b0 = hn::Sub(b0, hn::Mul(fb, left)), b1 = hn::Sub(b1, hn::Mul(fb, right));
      c0 = hn::Sub(c0, hn::Mul(fc, left)), c1 = hn::Sub(c1, hn::Mul(fc, right));
      d0 = hn::Sub(d0, hn::Mul(fd, left)), d1 = hn::Sub(d1, hn::Mul(fd, right));
    }
    hn::StoreU(a0, d, at), hn::StoreU(a1, d, at + lanes);
    hn::StoreU(b0, d, at + n), hn::StoreU(b1, d, at + n + lanes);
    hn::StoreU(c0, d, at + 2 * n), hn::StoreU(c1, d, at + 2 * n + lanes);
    hn::StoreU(d0, d, at + 3 * n), hn::StoreU(d1, d, at + 3 * n + lanes);
  }
}

void subtract(float* u, size_t n, size_t first, size_t count, size_t row, size_t rows, size_t begin) {
  const float* above = u + first * n;
  float* to = u + row * n + begin;
  if (rows == 4) return subtract_four(above + begin, above + row, n, count, to);
  subtract_row(above + begin, above + row, n, count, to);
}

const CholeskyKernels& cholesky_table() {
  static constexpr CholeskyKernels kTable = {isa_name(HWY_TARGET), subtract};
  return kTable;
}

}  // namespace kvq::weights::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvq::weights {
std::span<const CholeskyKernels* const> cholesky_kernels() {
  static const RunnableTables<CholeskyKernels> tables(KVQ_TARGET_TABLES(cholesky_table));
  return tables.all();
}

}  // namespace kvq::weights
#endif
