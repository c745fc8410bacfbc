#include "kernels.h"

#include <algorithm>

namespace llama::cuda {
namespace {

constexpr int64_t kWarp = 32;
constexpr int64_t kMaxThreads = 1024;
constexpr int64_t kThreads = 256;  // of blocks that share their work with no other thread

// Whole warps, enough for one element a thread if a block can have as many.
unsigned threads_for(int64_t width) {
  return static_cast<unsigned>(std::min((width + kWarp - 1) / kWarp * kWarp, kMaxThreads));
}

unsigned blocks_for(int64_t n) { return static_cast<unsigned>((n + kThreads - 1) / kThreads); }

// The sum over all threads of a block of whole warps, in every thread. Once a kernel: the shared memory is not reused.
__device__ float sum_of_block(float value) {
  __shared__ float sums[kMaxThreads / kWarp];
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffU, value, distance);
  }
  if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = value;
  __syncthreads();
  float total = 0.0F;
  for (unsigned warp = 0; warp < blockDim.x / kWarp; ++warp) total += sums[warp];
  return total;
}

__global__ void embed_kernel(const float* embedding, const int32_t* tokens, int64_t width, float* x) {
  const float* row = embedding + tokens[blockIdx.x] * width;
  float* out = x + blockIdx.x * width;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) out[i] = row[i];
}

__global__ void rms_norm_kernel(const float* x, const float* weight, float epsilon, int64_t width, float* y) {
  const float* row = x + blockIdx.x * width;
  float* out = y + blockIdx.x * width;
  float squares = 0.0F;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) squares += row[i] * row[i];
  const float mean_square = sum_of_block(squares) / static_cast<float>(width);
  const float factor = 1.0F / sqrtf(mean_square + epsilon);
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) out[i] = row[i] * factor * weight[i];
}

__global__ void swiglu_kernel(float* gate, const float* up, int64_t n) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) gate[i] = gate[i] / (1.0F + expf(-gate[i])) * up[i];
}

__global__ void add_kernel(const float* x, int64_t n, float* y) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) y[i] += x[i];
}

__global__ void add_bias_kernel(const float* bias, int64_t n, int64_t width, float* y) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) y[i] += bias[i % width];
}

}  // namespace

cudaError_t launch_embed(const float* embedding, const int32_t* tokens, int64_t n, int64_t width, float* x,
                         cudaStream_t stream) {
  embed_kernel<<<static_cast<unsigned>(n), threads_for(width), 0, stream>>>(embedding, tokens, width, x);
  return cudaGetLastError();
}

cudaError_t launch_rms_norm(const float* x, const float* weight, float epsilon, int64_t rows, int64_t width, float* y,
                            cudaStream_t stream) {
  rms_norm_kernel<<<static_cast<unsigned>(rows), threads_for(width), 0, stream>>>(x, weight, epsilon, width, y);
  return cudaGetLastError();
}

cudaError_t launch_swiglu(float* gate, const float* up, int64_t n, cudaStream_t stream) {
  swiglu_kernel<<<blocks_for(n), kThreads, 0, stream>>>(gate, up, n);
  return cudaGetLastError();
}

cudaError_t launch_add(const float* x, int64_t n, float* y, cudaStream_t stream) {
  add_kernel<<<blocks_for(n), kThreads, 0, stream>>>(x, n, y);
  return cudaGetLastError();
}

cudaError_t launch_add_bias(const float* bias, int64_t rows, int64_t width, float* y, cudaStream_t stream) {
  add_bias_kernel<<<blocks_for(rows * width), kThreads, 0, stream>>>(bias, rows * width, width, y);
  return cudaGetLastError();
}

}  // namespace llama::cuda
