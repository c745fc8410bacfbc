// Compiles the kernels of append once per Highway target: this file includes itself through foreach_target.h.
#include "backend/cpu/dispatch/highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/append/append_highway.cpp"
#include <hwy/foreach_target.h>  // must precede highway.h

#include <hwy/highway.h>

#include "backend/cpu/append/rotate-inl.h"
#include "backend/cpu/append/store-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

const AppendKernels& append_kernels() {
  static constexpr AppendKernels kKernels = {
      .fill_rotation = fill_rotation, .store_keys = store_keys, .store_values = store_values};
  return kKernels;
}

}  // namespace kvq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvq::cpu {

std::span<const TargetTable<AppendKernels>> highway_append_kernels() {
  static const TargetTable<AppendKernels> kTables[] = KVQ_TARGET_TABLES(append_kernels);
  return kTables;
}

}  // namespace kvq::cpu
#endif
