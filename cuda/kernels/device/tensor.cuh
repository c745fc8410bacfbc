// Loads from and stores to the caller's tensors.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cstdint>

namespace kvq::cuda {

/// log2 of an element's bytes. `dtype` is a kvq_dtype.
__device__ inline int32_t element_shift(int32_t dtype) { return dtype == 0 ? 2 : 1; }

/// Loads an element's bits, or 0 if not `wanted`. Branch-free, so that several loads are in flight at once.
__device__ inline uint32_t read_bits(const void* element, int32_t dtype, bool wanted) {
  uint32_t bits = 0;
  asm volatile(
      "{\n"
      ".reg .pred wide, narrow;\n"
      "setp.eq.s32 wide, %2, 4;\n"
      "setp.eq.s32 narrow, %2, 2;\n"
      "@wide ld.global.nc.u32 %0, [%1];\n"
      "@narrow ld.global.nc.u16 %0, [%1];\n"
      "}\n"
      : "+r"(bits)
      : "l"(element), "r"(wanted ? 1 << element_shift(dtype) : 0));
  return bits;
}

__device__ inline float to_float(uint32_t bits, int32_t dtype) {
  if (dtype == 1) return __half2float(__ushort_as_half(static_cast<uint16_t>(bits)));
  return __uint_as_float(dtype == 0 ? bits : bits << 16U);
}

__device__ inline float read_float(const void* tensor, int32_t dtype, int64_t index) {
  if (dtype == 0) return static_cast<const float*>(tensor)[index];
  return to_float(static_cast<const uint16_t*>(tensor)[index], dtype);
}

/// Reads eight neighbours; with `vectors`, elements [index, index + 8) are 16-byte aligned.
__device__ inline void read_eight(const void* tensor, int32_t dtype, bool vectors, int64_t index, float (&out)[8]) {
  if (!vectors) {
#pragma unroll
    for (int32_t i = 0; i < 8; ++i) out[i] = read_float(tensor, dtype, index + i);
    return;
  }
  if (dtype == 0) {
    const auto* four = reinterpret_cast<const float4*>(static_cast<const float*>(tensor) + index);
    const float4 a = four[0];
    const float4 b = four[1];
    out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w;
    out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
    return;
  }
  const uint4 bits = *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(tensor) + index);
  const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) {
    if (dtype == 1) {
      const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&words[i]));
      out[2 * i] = pair.x, out[2 * i + 1] = pair.y;
    } else {
      out[2 * i] = __uint_as_float(words[i] << 16U);
      out[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000U);
    }
  }
}

__device__ inline void write_float(void* tensor, int32_t dtype, int64_t index, float value) {
  if (dtype == 0) {
    static_cast<float*>(tensor)[index] = value;
  } else if (dtype == 1) {
    static_cast<__half*>(tensor)[index] = __float2half_rn(value);
  } else {
    static_cast<__nv_bfloat16*>(tensor)[index] = __float2bfloat16_rn(value);
  }
}

/// Writes four neighbours.
__device__ inline void write_four(void* tensor, int32_t dtype, int64_t index, const float (&x)[4]) {
  if (dtype == 0) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) static_cast<float*>(tensor)[index + i] = x[i];
    return;
  }
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) {
    static_cast<uint16_t*>(tensor)[index + i] =
        dtype == 1 ? __half_as_ushort(__float2half_rn(x[i])) : __bfloat16_as_ushort(__float2bfloat16_rn(x[i]));
  }
}

}  // namespace kvq::cuda
