// Compiles the attention kernels shared by all formats once per Highway target: this file includes itself through
// foreach_target.h.
#include "backend/cpu/dispatch/highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/attend/attend_highway.cpp"
#include <hwy/foreach_target.h>  // must precede highway.h

#include <hwy/highway.h>

#include "backend/cpu/attend/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

const AttendKernels& attend_kernels() {
  static constexpr AttendKernels kKernels = {.softmax = softmax, .blend = blend};
  return kKernels;
}

}  // namespace kvq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvq::cpu {

std::span<const TargetTable<AttendKernels>> highway_attend_kernels() {
  static const TargetTable<AttendKernels> kTables[] = KVQ_TARGET_TABLES(attend_kernels);
  return kTables;
}

#if (HWY_TARGETS & HWY_AVX3) != 0
SoftmaxKernel avx512_softmax() { return N_AVX3::attend_kernels().softmax; }
#endif

}  // namespace kvq::cpu
#endif
