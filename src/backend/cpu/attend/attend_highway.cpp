// The portable kernels of attention, compiled once per Highway target: this file includes itself through
// foreach_target.h.
#include "backend/cpu/dispatch/highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/attend/attend_highway.cpp"
#include <hwy/foreach_target.h>  // must precede highway.h

#include <hwy/highway.h>

#include "backend/cpu/attend/float16-inl.h"
#include "backend/cpu/attend/gain_shape/gain_shape-inl.h"
#include "backend/cpu/attend/integer-inl.h"
#include "backend/cpu/attend/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

const AttendKernels& attend_kernels() {
  static constexpr AttendKernels kKernels = {
      .float16 = {.keys = float16_keys, .values = float16_values},
      .int8 = {.keys = integer_keys<8>, .values = integer_values<8>},
      .int4 = {.keys = integer_keys<4>, .values = integer_values<4>},
      .int3 = {.keys = integer_keys<3>, .values = integer_values<3>},
      .int2 = {.keys = integer_keys<2>, .values = integer_values<2>},
      .gs4 = {.keys = gain_shape_keys<ScalarWords<4>>, .values = gain_shape_values<ScalarWords<4>>},
      .gs3 = {.keys = gain_shape_keys<ScalarWords<3>>, .values = gain_shape_values<ScalarWords<3>>},
      .gs2 = {.keys = gain_shape_keys<ScalarWords<2>>, .values = gain_shape_values<ScalarWords<2>>},
      .gs1 = {.keys = gain_shape_keys<ScalarWords<1>>, .values = gain_shape_values<ScalarWords<1>>},
      .gt3 = {.keys = gain_shape_keys<TrellisWords<3>>, .values = gain_shape_values<TrellisWords<3>>},
      .gt2 = {.keys = gain_shape_keys<TrellisWords<2>>, .values = gain_shape_values<TrellisWords<2>>},
      .gt1 = {.keys = gain_shape_keys<TrellisWords<1>>, .values = gain_shape_values<TrellisWords<1>>},
      .softmax = softmax,
      .blend = blend};
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
