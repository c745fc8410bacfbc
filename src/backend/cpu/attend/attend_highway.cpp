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
  static constexpr PageKernels kPages[] = {
      {CodeType::float16(), float16_keys, float16_values},
      {CodeType::integer(8), integer_keys<8>, integer_values<8>},
      {CodeType::integer(4), integer_keys<4>, integer_values<4>},
      {CodeType::integer(3), integer_keys<3>, integer_values<3>},
      {CodeType::integer(2), integer_keys<2>, integer_values<2>},
      {CodeType::gain_scalar(4), gain_shape_keys<ScalarWords<4>>, gain_shape_values<ScalarWords<4>>},
      {CodeType::gain_scalar(3), gain_shape_keys<ScalarWords<3>>, gain_shape_values<ScalarWords<3>>},
      {CodeType::gain_scalar(2), gain_shape_keys<ScalarWords<2>>, gain_shape_values<ScalarWords<2>>},
      {CodeType::gain_scalar(1), gain_shape_keys<ScalarWords<1>>, gain_shape_values<ScalarWords<1>>},
      {CodeType::gain_trellis(3), gain_shape_keys<TrellisWords<3>>, gain_shape_values<TrellisWords<3>>},
      {CodeType::gain_trellis(2), gain_shape_keys<TrellisWords<2>>, gain_shape_values<TrellisWords<2>>},
      {CodeType::gain_trellis(1), gain_shape_keys<TrellisWords<1>>, gain_shape_values<TrellisWords<1>>},
  };
  static constexpr AttendKernels kKernels = {.pages = kPages, .softmax = softmax, .blend = blend};
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
