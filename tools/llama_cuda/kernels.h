#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kvq.h"

namespace llama::cuda {

/// x `[n, width]` = scale · rows `tokens[n]` of `embedding`, whose numbers are of `dtype`.
cudaError_t launch_embed(const void* embedding, kvq_dtype dtype, const int32_t* tokens, int64_t n, int64_t width,
                         float scale, float* x, cudaStream_t stream);

/// Whether launch_multiply_few_rows() takes such weights, FP16 or BF16 with columns in multiples of 8, and so many
/// rows.
bool can_multiply_few_rows(kvq_dtype dtype, int64_t in, int64_t rows);

/// y = x·Wᵀ + beta·y with W `[out, in]` of `dtype`, x `[rows, in]` and y `[rows, out]`, summed in FP32: as fast as
/// weights can be read. W is aligned to 16 bytes, as is x. With a beta of 0, y is not read.
cudaError_t launch_multiply_few_rows(const void* weight, kvq_dtype dtype, int64_t out, int64_t in, const float* x,
                                     int64_t rows, float beta, float* y, cudaStream_t stream);

/// Numbers in FP16 or BF16 that have the precision of a float together.
constexpr int64_t kParts = 3;

/// x `[rows, in]` as the sum of `parts` `[kParts, rows, in]` of `dtype`, FP16 or BF16, with a factor for each row.
cudaError_t launch_split(const float* x, int64_t rows, int64_t in, kvq_dtype dtype, void* parts, float* scales,
                         cudaStream_t stream);

/// y = x·Wᵀ + beta·y, for `count` outputs of `out`, from products `[kParts, rows, count]` of the parts of x with W.
/// With a beta of 0, y is not read.
cudaError_t launch_join(const float* products, const float* scales, kvq_dtype dtype, int64_t rows, int64_t count,
                        int64_t out, float beta, float* y, cudaStream_t stream);

/// y = x / rms(x) · weight for each of `rows` rows of `width`; `x` and `y` may be the same.
cudaError_t launch_rms_norm(const float* x, const float* weight, float epsilon, int64_t rows, int64_t width, float* y,
                            cudaStream_t stream);

/// gate = silu(gate) · up, over `n` numbers.
cudaError_t launch_swiglu(float* gate, const float* up, int64_t n, cudaStream_t stream);

/// gate = gelu(gate) · up, approximated by tanh.
cudaError_t launch_geglu(float* gate, const float* up, int64_t n, cudaStream_t stream);

/// x = cap · tanh(x / cap), over `n` numbers.
cudaError_t launch_softcap(float cap, int64_t n, float* x, cudaStream_t stream);

/// y += x, over `n` numbers.
cudaError_t launch_add(const float* x, int64_t n, float* y, cudaStream_t stream);

/// Add `bias` to each of `rows` rows of `width`.
cudaError_t launch_add_bias(const float* bias, int64_t rows, int64_t width, float* y, cudaStream_t stream);

}  // namespace llama::cuda
