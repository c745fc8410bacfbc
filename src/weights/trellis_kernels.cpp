// Compiled once per Highway target: this file includes itself through foreach_target.h. No product is fused with a sum,
// neither here nor by the compiler (-ffp-contract=off in CMakeLists.txt): not every target could.
#include "weights/trellis_search.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "weights/trellis_kernels.cpp"
#include <hwy/foreach_target.h>  // must precede highway.h

#include <hwy/highway.h>

#include "core/target_tables.h"

HWY_BEFORE_NAMESPACE();
namespace kvq::weights::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using FloatTag = hn::ScalableTag<float>;
using FloatVector = hn::Vec<FloatTag>;

// Vectors of groups at a time, to hide the latency of sums.
inline constexpr size_t kVectors = 4;
// Shifts from here on give all lanes of a vector the same costs.
inline constexpr int32_t kWideShift = 4;

/// costs[x >> up] for x + kVector vectors and what follows, x a multiple of kVectors vectors. `kUp`: up, or kWideShift
/// for larger ones.
template <int32_t kUp, size_t kVector>
HWY_INLINE FloatVector spread(const float* costs, size_t x, int32_t up) {
  const FloatTag d;
  constexpr size_t kLanes = HWY_MAX_BYTES / sizeof(float);
  static_assert(kLanes <= size_t{1} << kWideShift);
  if constexpr ((size_t{1} << kUp) >= kLanes) {
    return hn::Set(d, costs[(x + kVector * kLanes) >> up]);
  } else {
    // Lanes of an aligned vector, so that no load crosses a cache line.
    constexpr size_t kFirst = (kVector * kLanes) >> kUp;
    const hn::RebindToSigned<FloatTag> di;
    const auto lanes = hn::ShiftRight<kUp>(hn::Iota(di, static_cast<int32_t>((kFirst % kLanes) << kUp)));
    const FloatVector source = hn::LoadU(d, costs + (x >> up) + kFirst / kLanes * kLanes);
    return hn::TableLookupLanes(source, hn::IndicesFromVec(d, lanes));
  }
}

/// Cost of one vector of states from x on, with the cost of their followers.
template <int32_t kUp, size_t kDims, size_t kVector>
HWY_INLINE FloatVector cost(const StateLevels& levels, const FloatVector (&wanted)[2], const float* next, size_t x,
                            int32_t up) {
  const FloatTag d;
  const size_t at = x + kVector * hn::Lanes(d);
  const FloatVector miss = hn::Sub(wanted[0], hn::LoadU(d, levels.levels[0].data() + at));
  FloatVector sum = hn::Mul(miss, miss);
  if constexpr (kDims == 2) {
    const FloatVector second = hn::Sub(wanted[1], hn::LoadU(d, levels.levels[1].data() + at));
    sum = hn::Add(sum, hn::Mul(second, second));
  }
  return hn::Add(sum, spread<kUp, kVector>(next, x, up));
}

template <int32_t kUp, size_t kDims>
HWY_INLINE void step_of(const StateLevels& levels, const float* target, const float* next, int32_t up, int32_t down,
                        float* out) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  const size_t groups = size_t{1} << (kStateBits - down);
  const FloatVector wanted[2] = {hn::Set(d, target[0]), hn::Set(d, target[1])};
  for (size_t g = 0; g < groups; g += kVectors * lanes) {
    FloatVector best0 = cost<kUp, kDims, 0>(levels, wanted, next, g, up);
    FloatVector best1 = cost<kUp, kDims, 1>(levels, wanted, next, g, up);
    FloatVector best2 = cost<kUp, kDims, 2>(levels, wanted, next, g, up);
    FloatVector best3 = cost<kUp, kDims, 3>(levels, wanted, next, g, up);
    for (size_t x = g + groups; x < kStates; x += groups) {
      best0 = hn::Min(best0, cost<kUp, kDims, 0>(levels, wanted, next, x, up));
      best1 = hn::Min(best1, cost<kUp, kDims, 1>(levels, wanted, next, x, up));
      best2 = hn::Min(best2, cost<kUp, kDims, 2>(levels, wanted, next, x, up));
      best3 = hn::Min(best3, cost<kUp, kDims, 3>(levels, wanted, next, x, up));
    }
    hn::StoreU(best0, d, out + g);
    hn::StoreU(best1, d, out + g + lanes);
    hn::StoreU(best2, d, out + g + 2 * lanes);
    hn::StoreU(best3, d, out + g + 3 * lanes);
  }
}

template <size_t kDims>
void step_by(const StateLevels& levels, const float* target, const float* next, int32_t up, int32_t down, float* out) {
  if (up == 1) return step_of<1, kDims>(levels, target, next, up, down, out);
  if (up == 2) return step_of<2, kDims>(levels, target, next, up, down, out);
  if (up == 3) return step_of<3, kDims>(levels, target, next, up, down, out);
  step_of<kWideShift, kDims>(levels, target, next, up, down, out);
}

void step(const StateLevels& levels, const float* target, const float* next, int32_t up, int32_t down, float* out) {
  const bool pairs = !levels.levels[1].empty();
  return pairs ? step_by<2>(levels, target, next, up, down, out) : step_by<1>(levels, target, next, up, down, out);
}

const TrellisKernels& trellis_table() {
  static constexpr TrellisKernels kTable = {isa_name(HWY_TARGET), step};
  return kTable;
}

}  // namespace kvq::weights::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvq::weights {
std::span<const TrellisKernels* const> trellis_kernels() {
  static const RunnableTables<TrellisKernels> tables(KVQ_TARGET_TABLES(trellis_table));
  return tables.all();
}

}  // namespace kvq::weights
#endif
