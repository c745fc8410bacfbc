// Kernels of gain–shape pages, compiled once per Highway target: this file includes itself through
// foreach_target.h.
#include "backend/cpu/dispatch/highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/dispatch/gain_shape_highway.cpp"
#include <hwy/foreach_target.h>  // must precede highway.h

#include <hwy/highway.h>

#include "backend/cpu/append/gain_shape/centres-inl.h"
#include "backend/cpu/append/gain_shape/gain_shape-inl.h"
#include "backend/cpu/attend/gain_shape/gain_shape-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

template <int kBits>
constexpr CodeKernels scalar_page() {
  return {CodeType::gain_scalar(kBits),
          {.encode = encode_gain_shape,
           .room_bytes = GainShapeEncoder::scalar_room_bytes,
           .keys = gain_shape_keys<ScalarWords<kBits>>,
           .values = gain_shape_values<ScalarWords<kBits>>,
           .as_keys = scalar_as_keys<kBits>,
           .keys_code = CodeType::gain_scalar(kBits)}};
}
template <int kBits>
constexpr CodeKernels trellis_page() {
  return {CodeType::gain_trellis(kBits),
          {.encode = encode_gain_shape,
           .room_bytes = GainShapeEncoder::trellis_room_bytes,
           .keys = gain_shape_keys<TrellisWords<kBits>>,
           .values = gain_shape_values<TrellisWords<kBits>>,
           .as_keys = trellis_as_keys<TrellisWords<kBits>>}};
}

const CodecKernels& gain_shape_kernels() {
  static constexpr CodeKernels kCodes[] = {scalar_page<4>(),  scalar_page<3>(),  scalar_page<2>(), scalar_page<1>(),
                                           trellis_page<3>(), trellis_page<2>(), trellis_page<1>()};
  static constexpr CodecKernels kKernels = {
      .codes = kCodes,
      .centres = {.nearest = nearest_centres, .encode = encode_centred, .room_bytes = centred_room_bytes}};
  return kKernels;
}

}  // namespace kvq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvq::cpu {

std::span<const TargetTable<CodecKernels>> KVQ_KERNELS_OF(gain_shape)() {
  static const TargetTable<CodecKernels> kTables[] = KVQ_TARGET_TABLES(gain_shape_kernels);
  return kTables;
}

}  // namespace kvq::cpu
#endif
