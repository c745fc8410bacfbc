// The portable kernels, compiled once per Highway target: this file includes itself through foreach_target.h.
#include "backend/cpu/dispatch/tables.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/attend/attend_highway.cpp"
#include <hwy/foreach_target.h>  // must precede highway.h

#include <hwy/highway.h>

#include "backend/cpu/attend/float16-inl.h"
#include "backend/cpu/attend/integer-inl.h"
#include "backend/cpu/attend/softmax-inl.h"
#include "backend/cpu/commvq/codes-inl.h"
#include "backend/cpu/commvq/products-inl.h"
#include "core/isa_name.h"

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

const AppendKernels& append_kernels();  // append/append_highway.cpp
const LinearKernels& linear_kernels();  // linear/linear_highway.cpp

const KernelTable& table() {
  static const KernelTable kTable = {
      isa_name(HWY_TARGET),
      float16_keys,
      float16_values,
      {nullptr, nullptr, integer_keys<2>, integer_keys<3>, integer_keys<4>, nullptr, nullptr, nullptr, integer_keys<8>},
      {nullptr, nullptr, integer_values<2>, integer_values<3>, integer_values<4>, nullptr, nullptr, nullptr,
       integer_values<8>},
      sum_centres,
      nullptr,
      nullptr,
      sum_bits,
      multiply,
      multiply_codes,
      sum_products,
      softmax,
      blend,
      &append_kernels(),
      &linear_kernels()};
  return kTable;
}

}  // namespace kvq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvq::cpu {

std::span<const TargetTable<KernelTable>> highway_tables() {
  static const TargetTable<KernelTable> kTables[] = KVQ_TARGET_TABLES(table);
  return kTables;
}

#if (HWY_TARGETS & HWY_AVX3) != 0
const KernelTable& avx512_table() { return N_AVX3::table(); }
#endif

}  // namespace kvq::cpu
#endif
