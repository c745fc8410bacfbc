// The kernels of appending, compiled once per Highway target: this file includes itself through foreach_target.h.
#include "backend/cpu/dispatch/highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/append/append_highway.cpp"
#include <hwy/foreach_target.h>  // must precede highway.h

#include <hwy/highway.h>

#include "backend/cpu/append/encode-inl.h"
#include "backend/cpu/append/gain_shape/centres-inl.h"
#include "backend/cpu/append/gain_shape/gain_shape-inl.h"
#include "backend/cpu/append/rotate-inl.h"
#include "backend/cpu/append/store-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

const AppendKernels& append_kernels() {
  static constexpr Encoder kEncoders[] = {
      {Coding::kFloat16, copy_float16, nullptr},
      {Coding::kInteger, encode_integer, SideEncoder::room_bytes},
      {Coding::kGainScalar, encode_gain_shape, GainShapeEncoder::scalar_room_bytes},
      {Coding::kGainTrellis, encode_gain_shape, GainShapeEncoder::trellis_room_bytes},
  };
  static constexpr AppendKernels kKernels = {.turn = turn,
                                             .store_keys = store_keys,
                                             .store_values = store_values,
                                             .encoders = kEncoders,
                                             .nearest_centres = nearest_centres,
                                             .encode_centred = encode_centred,
                                             .centred_room_bytes = centred_room_bytes};
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
