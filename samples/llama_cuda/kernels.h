#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace llama::cuda {

/// x `[n, width]` = rows `tokens[n]` of `embedding`.
cudaError_t launch_embed(const float* embedding, const int32_t* tokens, int64_t n, int64_t width, float* x,
                         cudaStream_t stream);

/// y = x / rms(x) · weight for each of `rows` rows of `width`; `x` and `y` may be the same.
cudaError_t launch_rms_norm(const float* x, const float* weight, float epsilon, int64_t rows, int64_t width, float* y,
                            cudaStream_t stream);

/// gate = silu(gate) · up, over `n` numbers.
cudaError_t launch_swiglu(float* gate, const float* up, int64_t n, cudaStream_t stream);

/// y += x, over `n` numbers.
cudaError_t launch_add(const float* x, int64_t n, float* y, cudaStream_t stream);

/// Add `bias` to each of `rows` rows of `width`.
cudaError_t launch_add_bias(const float* bias, int64_t rows, int64_t width, float* y, cudaStream_t stream);

}  // namespace llama::cuda
