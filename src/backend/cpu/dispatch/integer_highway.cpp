// Kernels of integer pages, compiled once per Highway target: this file includes itself through
// foreach_target.h.
#include "backend/cpu/dispatch/highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/dispatch/integer_highway.cpp"
#include <hwy/foreach_target.h>  // must precede highway.h

#include <hwy/highway.h>

#include "backend/cpu/append/encode-inl.h"
#include "backend/cpu/attend/integer-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

template <int kBits>
constexpr CodeKernels integer_page() {
  return {CodeType::integer(kBits),
          {.encode = encode_integer,
           .room_bytes = SideEncoder::room_bytes,
           .keys = integer_keys<kBits>,
           .values = integer_values<kBits>,
           .as_keys = integer_as_keys<kBits>}};
}

const CodecKernels& integer_kernels() {
  static constexpr CodeKernels kCodes[] = {integer_page<8>(), integer_page<4>(), integer_page<3>(), integer_page<2>()};
  static constexpr CodecKernels kKernels = {.codes = kCodes};
  return kKernels;
}

}  // namespace kvq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvq::cpu {

std::span<const TargetTable<CodecKernels>> KVQ_KERNELS_OF(integer)() {
  static const TargetTable<CodecKernels> kTables[] = KVQ_TARGET_TABLES(integer_kernels);
  return kTables;
}

}  // namespace kvq::cpu
#endif
