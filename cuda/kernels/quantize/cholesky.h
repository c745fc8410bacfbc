// Cholesky factors as on the host (weights/cholesky.h).
#pragma once

#include <cuda_runtime_api.h>
#include <cstdint>

namespace kvq::cuda {

/// Factorizes A = UᵀU in place, [n, n]. \param failed  becomes 1 unless A is positive definite
cudaError_t launch_factorize(float* matrix, int32_t n, int32_t* failed, cudaStream_t stream);

}  // namespace kvq::cuda
