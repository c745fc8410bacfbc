// Compiles the portable kernels of CommVQ pages once per Highway target: this file includes itself through
// foreach_target.h.
#include "backend/cpu/dispatch/highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/attend/commvq/commvq_highway.cpp"
#include <hwy/foreach_target.h>  // must precede highway.h

#include <hwy/highway.h>

#include "backend/cpu/attend/commvq/codes-inl.h"
#include "backend/cpu/attend/commvq/products-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

const CommvqKernels& commvq_kernels() {
  static constexpr CommvqKernels kKernels = {.sum_centres = sum_centres,
                                             .lookup_keys = nullptr,
                                             .lookup_scores = nullptr,
                                             .sum_bits = sum_bits,
                                             .multiply = multiply,
                                             .multiply_codes = multiply_codes,
                                             .sum_products = sum_products};
  return kKernels;
}

}  // namespace kvq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvq::cpu {

std::span<const TargetTable<CommvqKernels>> highway_commvq_kernels() {
  static const TargetTable<CommvqKernels> kTables[] = KVQ_TARGET_TABLES(commvq_kernels);
  return kTables;
}

}  // namespace kvq::cpu
#endif
