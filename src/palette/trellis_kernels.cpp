// Compiled once per Highway target: this file includes itself through foreach_target.h. No product is fused with a sum,
// neither here nor by the compiler (-ffp-contract=off in CMakeLists.txt): not every target could.
#include "palette/trellis_search.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "palette/trellis_kernels.cpp"
#include <hwy/foreach_target.h>  // must precede highway.h

#include <hwy/highway.h>
#include <hwy/targets.h>

#include "core/isa_name.h"

#include <array>

HWY_BEFORE_NAMESPACE();
namespace kvq::palette::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using FloatTag = hn::ScalableTag<float>;
using FloatVector = hn::Vec<FloatTag>;

/// costs[x >> kUp] for the lanes' consecutive x, of which the first is a multiple of their number.
template <int32_t kUp>
HWY_INLINE FloatVector spread(const float* costs, size_t x) {
  const FloatTag d;
  constexpr size_t kLanes = HWY_MAX_BYTES / sizeof(float);
  if constexpr ((size_t{1} << kUp) >= kLanes) {
    return hn::Set(d, costs[x >> kUp]);
  } else {
    const hn::RebindToSigned<FloatTag> di;
    const auto places = hn::IndicesFromVec(d, hn::ShiftRight<kUp>(hn::Iota(di, 0)));
    return hn::TableLookupLanes(hn::LoadU(d, costs + (x >> kUp)), places);
  }
}

/// Of a vector of states from x on: their cost, and the cost of what follows them.
template <int32_t kUp, size_t kDims>
HWY_INLINE FloatVector cost(const StateLevels& levels, const FloatVector (&wanted)[2], const float* next, size_t x) {
  const FloatTag d;
  const FloatVector miss = hn::Sub(wanted[0], hn::LoadU(d, levels.levels[0].data() + x));
  FloatVector sum = hn::Mul(miss, miss);
  if constexpr (kDims == 2) {
    const FloatVector second = hn::Sub(wanted[1], hn::LoadU(d, levels.levels[1].data() + x));
    sum = hn::Add(sum, hn::Mul(second, second));
  }
  return hn::Add(sum, spread<kUp>(next, x));
}

template <int32_t kUp, size_t kDims>
HWY_INLINE void step_of(const StateLevels& levels, const float* target, const float* next, int32_t down, float* out) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  const size_t groups = size_t{1} << (kStateBits - down);
  const FloatVector wanted[2] = {hn::Set(d, target[0]), hn::Set(d, target[1])};
  const auto cost_at = [&](size_t x) HWY_ATTR { return cost<kUp, kDims>(levels, wanted, next, x); };
  for (size_t g = 0; g < groups; g += 4 * lanes) {  // four vectors of groups hide the time that a sum takes
    FloatVector best0 = cost_at(g);
    FloatVector best1 = cost_at(g + lanes);
    FloatVector best2 = cost_at(g + 2 * lanes);
    FloatVector best3 = cost_at(g + 3 * lanes);
    for (size_t x = g + groups; x < kStates; x += groups) {
      best0 = hn::Min(best0, cost_at(x));
      best1 = hn::Min(best1, cost_at(x + lanes));
      best2 = hn::Min(best2, cost_at(x + 2 * lanes));
      best3 = hn::Min(best3, cost_at(x + 3 * lanes));
    }
    hn::StoreU(best0, d, out + g);
    hn::StoreU(best1, d, out + g + lanes);
    hn::StoreU(best2, d, out + g + 2 * lanes);
    hn::StoreU(best3, d, out + g + 3 * lanes);
  }
}

template <size_t kDims>
void step_by(const StateLevels& levels, const float* target, const float* next, int32_t up, int32_t down, float* out) {
  switch (up) {
    case 1:
      return step_of<1, kDims>(levels, target, next, down, out);
    case 2:
      return step_of<2, kDims>(levels, target, next, down, out);
    case 3:
      return step_of<3, kDims>(levels, target, next, down, out);
    case 4:
      return step_of<4, kDims>(levels, target, next, down, out);
    case 5:
      return step_of<5, kDims>(levels, target, next, down, out);
    case 6:
      return step_of<6, kDims>(levels, target, next, down, out);
    case 7:
      return step_of<7, kDims>(levels, target, next, down, out);
    case 8:
      return step_of<8, kDims>(levels, target, next, down, out);
    case 9:
      return step_of<9, kDims>(levels, target, next, down, out);
    default:
      return step_of<10, kDims>(levels, target, next, down, out);
  }
}

void step(const StateLevels& levels, const float* target, const float* next, int32_t up, int32_t down, float* out) {
  if (levels.levels[1].empty()) {
    const float targets[2] = {target[0], 0.0F};
    return step_by<1>(levels, targets, next, up, down, out);
  }
  step_by<2>(levels, target, next, up, down, out);
}

const TrellisKernels& trellis_table() {
  static constexpr TrellisKernels kTable = {isa_name(HWY_TARGET), step};
  return kTable;
}

}  // namespace kvq::palette::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvq::palette {
namespace {

struct Tables {
  std::array<const TrellisKernels*, 3> entries{};
  size_t count = 0;

  Tables() {
    const int64_t supported = hwy::SupportedTargets();
    (void)supported;
#if (HWY_TARGETS & HWY_AVX3) != 0
    if ((supported & HWY_AVX3) != 0) entries[count++] = &N_AVX3::trellis_table();
#endif
#if (HWY_TARGETS & HWY_AVX2) != 0 && HWY_STATIC_TARGET != HWY_AVX2
    if ((supported & HWY_AVX2) != 0) entries[count++] = &N_AVX2::trellis_table();
#endif
    entries[count++] = &HWY_STATIC_DISPATCH(trellis_table)();
  }
};

}  // namespace

std::span<const TrellisKernels* const> trellis_kernels() {
  static const Tables tables;
  return {tables.entries.data(), tables.count};
}

}  // namespace kvq::palette
#endif
