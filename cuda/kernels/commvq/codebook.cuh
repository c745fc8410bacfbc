// Device functions that read CommVQ pages, and FP16 values in pages.
#pragma once

#include "core/float16.h"
#include "formats/float16/layout.h"
#include "kernels/commvq/codebook.h"

#include <cuda_fp16.h>

namespace kvq::cuda {

__device__ __forceinline__ float half_at(const uint16_t* halves, int64_t i) {
  return __half2float(__ushort_as_half(__ldg(halves + i)));
}

/// A codebook entry {re, im}.
__device__ __forceinline__ float2 code_at(const uint32_t* rows, int64_t i) {
  const uint32_t two = __ldg(rows + i);
  return __half22float2(*reinterpret_cast<const __half2*>(&two));
}

/// Complex product.
__device__ __forceinline__ float2 product(float2 a, float2 b) { return {a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x}; }

/// e^{i·position·θ} of a pair, digit by digit as on the host (core/rotation_table.h).
__device__ __forceinline__ float2 rotation_of(const CodebookTables& tables, int32_t position, int32_t pair) {
  const int32_t pairs = tables.pairs();
  const auto entry = [&](int32_t row) {
    const float* from = tables.rotations + int64_t{row} * 2 * pairs + pair;
    return make_float2(__ldg(from), __ldg(from + pairs));
  };
  float2 rotation = entry(position & 31);
  position >>= 5;
  for (int32_t level = 1; position > 0; ++level, position >>= 5) {
    const int32_t digit = position & 31;
    if (digit == 0) continue;
    rotation = product(rotation, entry(32 * level + digit));
  }
  return rotation;
}

/// Byte offset of a scalar in an FP16 side on the device.
__device__ __forceinline__ int32_t float16_place(Side side, int32_t head_dim, int32_t slot, int32_t channel) {
  const auto at = static_cast<int32_t>(2 * float16::index(side, head_dim, slot, channel));
  const int32_t chunk = side == Side::kKeys ? key_chunk(CodeType::float16(), at / 16)
                                            : value_chunk(CodeType::float16(), head_dim, at / 16);
  return 16 * chunk + at % 16;
}

/// Head among those that share a slot's norm or scale whose page holds it, and the byte offset there.
__device__ __forceinline__ int32_t holder_of(const SharedNumbers& numbers, int32_t head, int32_t slot) {
  return numbers.of_layer != 0 ? slot / numbers.share : head;
}
__device__ __forceinline__ int32_t place_of(const SharedNumbers& numbers, int32_t slot) {
  return numbers.offset + 2 * (slot % numbers.share);
}

/// Reads a field from a stream of `bits`-bit fields.
__device__ __forceinline__ int32_t field_at(const std::byte* stream, int32_t field, int32_t bits) {
  const int32_t at = field * bits;
  const auto* bytes = reinterpret_cast<const uint8_t*>(stream) + at / 8;
  uint32_t two = __ldg(bytes);
  if (at % 8 + bits > 8) two |= static_cast<uint32_t>(__ldg(bytes + 1)) << 8U;
  return static_cast<int32_t>(two >> (at % 8) & ((1U << bits) - 1U));
}

/// All threads of a block copy a side.
__device__ __forceinline__ void copy_side(const CopiedSide& side, uint64_t from, uint64_t to) {
  const auto* words = reinterpret_cast<const uint64_t*>(from + static_cast<uint64_t>(side.from));
  auto* target = reinterpret_cast<uint64_t*>(to + static_cast<uint64_t>(side.to));
  for (auto i = static_cast<int32_t>(threadIdx.x); i < side.bytes / 8; i += static_cast<int32_t>(blockDim.x)) {
    target[i] = words[i];
  }
}

}  // namespace kvq::cuda
