// Reading and writing the caller's tensors.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cstdint>

namespace kvq::cuda {

/// `dtype` is a kvq_dtype.
__device__ inline float read_float(const void* tensor, int32_t dtype, int64_t index) {
  if (dtype == 0) return static_cast<const float*>(tensor)[index];
  if (dtype == 1) return __half2float(static_cast<const __half*>(tensor)[index]);
  return __bfloat162float(static_cast<const __nv_bfloat16*>(tensor)[index]);
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

}  // namespace kvq::cuda
