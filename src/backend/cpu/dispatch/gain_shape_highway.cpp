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

template <typename Words>
constexpr CodeKernels gain_shape_page(CodeType code, RoomKernel room_bytes) {
  return {code,
          {.encode = encode_gain_shape,
           .room_bytes = room_bytes,
           .keys = gain_shape_keys<Words>,
           .values = gain_shape_values<Words>}};
}
template <int kBits>
constexpr CodeKernels scalar_page() {
  return gain_shape_page<ScalarWords<kBits>>(CodeType::gain_scalar(kBits), GainShapeEncoder::scalar_room_bytes);
}
template <int kBits>
constexpr CodeKernels trellis_page() {
  return gain_shape_page<TrellisWords<kBits>>(CodeType::gain_trellis(kBits), GainShapeEncoder::trellis_room_bytes);
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

std::span<const TargetTable<CodecKernels>> highway_gain_shape_kernels() {
  static const TargetTable<CodecKernels> kTables[] = KVQ_TARGET_TABLES(gain_shape_kernels);
  return kTables;
}

}  // namespace kvq::cpu
#endif
