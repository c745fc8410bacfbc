// Compiles the kernels of packed matrices once per Highway target: this file includes itself through foreach_target.h.
#include "backend/cpu/dispatch/highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/linear/linear_highway.cpp"
#include <hwy/foreach_target.h>  // must precede highway.h

#include <hwy/highway.h>

#include "backend/cpu/linear/activations-inl.h"
#include "backend/cpu/linear/linear-inl.h"
#include "backend/cpu/linear/windows-inl.h"
#include "weights/scheme.h"

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

void multiply_tcq(const LinearSegment& segment, const ActivationGroup* groups, int32_t count, float* sums) {
  switch (segment.codebook.index_bits) {
    case 9:
      return multiply_packed<PairTrellisDecoder<9>>(segment, groups, count, sums);
    case 10:
      return multiply_packed<PairTrellisDecoder<10>>(segment, groups, count, sums);
    default:
      return multiply_packed<PairTrellisDecoder<11>>(segment, groups, count, sums);
  }
}

const LinearKernels& linear_kernels() {
  static const LinearKernels kKernels = [] {
    LinearKernels kernels = {.round = round_row,
                             .widen = widen_row,
                             .float16 = multiply_float16,
                             .store = store_linear,
                             .products = {},
                             .packed = {}};
    auto& [nuq, vq, tcq, tcx] = kernels.packed;
    nuq[4] = multiply_packed<TableDecoder<1, 1>>;
    nuq[8] = multiply_packed<TableDecoder<1, 2>>;
    nuq[12] = multiply_packed<TableDecoder<1, 3>>;
    nuq[16] = multiply_packed<TableDecoder<1, 4>>;
    nuq[20] = multiply_packed<TableDecoder<1, 5>>;
    nuq[24] = multiply_packed<TableDecoder<1, 6>>;
    nuq[32] = multiply_packed<TableDecoder<1, 8>>;
    vq[6] = multiply_packed<TableDecoder<2, 3>>;
    vq[8] = multiply_packed<TableDecoder<2, 4>>;
    vq[10] = multiply_packed<TableDecoder<2, 5>>;
    vq[12] = multiply_packed<TableDecoder<2, 6>>;
    vq[14] = multiply_packed<TableDecoder<2, 7>>;
    vq[16] = multiply_packed<TableDecoder<2, 8>>;
    vq[18] = multiply_packed<LongPairDecoder<9>>;
    vq[20] = multiply_packed<LongPairDecoder<10>>;
    for (int32_t quarters = 6; quarters <= 20; quarters += 2) {
      tcq[quarters] = multiply_tcq;
      tcx[quarters] = multiply_packed<TrellisDecoder>;
    }
    return kernels;
  }();
  return kKernels;
}

}  // namespace kvq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvq::cpu {

std::span<const TargetTable<LinearKernels>> KVQ_KERNELS_OF(linear)() {
  static const TargetTable<LinearKernels> kTables[] = KVQ_TARGET_TABLES(linear_kernels);
  return kTables;
}

}  // namespace kvq::cpu
#endif
