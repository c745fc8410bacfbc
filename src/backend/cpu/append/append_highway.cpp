// The kernels of appending, compiled once per Highway target: this file includes itself through foreach_target.h.
#include "backend/cpu/append/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/append/append_highway.cpp"
#include <hwy/foreach_target.h>  // must precede highway.h

#include <hwy/highway.h>

#include "backend/cpu/append/encode-inl.h"
#include "backend/cpu/append/store-inl.h"
#include "backend/cpu/append/turn-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

const AppendKernels& append_kernels() {
  static constexpr AppendKernels kKernels = {turn, store_keys, store_values, encode};
  return kKernels;
}

}  // namespace kvq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
