// Kernels of FP16 pages, compiled once per Highway target: this file includes itself through
// foreach_target.h.
#include "backend/cpu/dispatch/highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/dispatch/float16_highway.cpp"
#include <hwy/foreach_target.h>  // must precede highway.h

#include <hwy/highway.h>

#include "backend/cpu/attend/float16-inl.h"
#include "backend/cpu/attend/latent-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

const CodecKernels& float16_kernels() {
  static constexpr CodeKernels kCodes[] = {
      {CodeType::float16(),
       {.encode = copy_float16, .keys = float16_keys, .values = float16_values, .as_keys = float16_as_keys}}};
  static constexpr CodecKernels kKernels = {.codes = kCodes};
  return kKernels;
}

}  // namespace kvq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvq::cpu {

std::span<const TargetTable<CodecKernels>> highway_float16_kernels() {
  static const TargetTable<CodecKernels> kTables[] = KVQ_TARGET_TABLES(float16_kernels);
  return kTables;
}

}  // namespace kvq::cpu
#endif
