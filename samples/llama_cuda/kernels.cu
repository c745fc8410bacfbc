#include "kernels.h"

#include <cuda_fp16.h>

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

// How numbers are stored, and what they are as floats.
struct Float32 {
  using Bits = float;
  static __device__ float widen(float number) { return number; }
};
struct Float16 {
  using Bits = uint16_t;
  static __device__ float widen(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
};
struct BFloat16 {
  using Bits = uint16_t;
  static __device__ float widen(uint16_t bits) { return __uint_as_float(static_cast<uint32_t>(bits) << 16); }
};

template <typename Format>
__global__ void embed_kernel(const typename Format::Bits* embedding, const int32_t* tokens, int64_t width, float* x) {
  const typename Format::Bits* row = embedding + tokens[blockIdx.x] * width;
  float* out = x + blockIdx.x * width;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) out[i] = Format::widen(row[i]);
}

template <typename Format>
__global__ void widen_kernel(const typename Format::Bits* numbers, int64_t n, float* out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) out[i] = Format::widen(numbers[i]);
}

constexpr int kChunk = 8;  // numbers of 16 bits that a thread reads at once
constexpr int kMostRowsTogether = 8;

template <typename Format>
__device__ void load_chunk(const uint16_t* from, float (&numbers)[kChunk]) {
  const uint4 words = __ldg(reinterpret_cast<const uint4*>(from));
  const uint32_t word[] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int i = 0; i < kChunk; ++i) numbers[i] = Format::widen(static_cast<uint16_t>(word[i / 2] >> (16 * (i % 2))));
}

__device__ void load_chunk(const float* from, float (&numbers)[kChunk]) {
#pragma unroll
  for (int i = 0; i < kChunk; i += 4) {
    const float4 four = __ldg(reinterpret_cast<const float4*>(from + i));
    numbers[i] = four.x;
    numbers[i + 1] = four.y;
    numbers[i + 2] = four.z;
    numbers[i + 3] = four.w;
  }
}

// A warp sums `kOutputs` outputs of up to `kRows` rows: with more rows more outputs, since each of them has to read all
// inputs again, if only from a cache.
template <typename Format, int kRows, int kOutputs>
__global__ void __launch_bounds__(kThreads)
    few_rows_kernel(const uint16_t* weight, int64_t out, int64_t in, const float* x, int rows, float beta, float* y) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int64_t first = (blockIdx.x * (kThreads / kWarp) + threadIdx.x / kWarp) * kOutputs;
  if (first >= out) return;
  // What is beyond the last is the last once more, and is not written.
  const uint16_t* weights[kOutputs];
#pragma unroll
  for (int o = 0; o < kOutputs; ++o) weights[o] = weight + min(first + o, out - 1) * in;
  const float* inputs[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) inputs[r] = x + min(r, rows - 1) * in;

  float sums[kRows][kOutputs] = {};
#pragma unroll 2
  for (int64_t i = lane * kChunk; i < in; i += kWarp * kChunk) {
    float w[kOutputs][kChunk];
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) load_chunk<Format>(weights[o] + i, w[o]);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float numbers[kChunk];
      load_chunk(inputs[r] + i, numbers);
#pragma unroll
      for (int o = 0; o < kOutputs; ++o) {
#pragma unroll
        for (int k = 0; k < kChunk; ++k) sums[r][o] = fmaf(numbers[k], w[o][k], sums[r][o]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      float sum = sums[r][o];
      for (int distance = kWarp / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffU, sum, distance);
      if (lane != 0 || r >= rows || first + o >= out) continue;
      float& result = y[r * out + first + o];
      result = beta == 0.0F ? sum : fmaf(beta, result, sum);
    }
  }
}

template <typename Format, int kRows, int kOutputs>
void few_rows(const uint16_t* weight, int64_t out, int64_t in, const float* x, int64_t rows, float beta, float* y,
              cudaStream_t stream) {
  constexpr int64_t kOfBlock = kThreads / kWarp * kOutputs;
  few_rows_kernel<Format, kRows, kOutputs>
      <<<static_cast<unsigned>((out + kOfBlock - 1) / kOfBlock), kThreads, 0, stream>>>(
          weight, out, in, x, static_cast<int>(rows), beta, y);
}

template <typename Format>
cudaError_t multiply_few_rows(const uint16_t* weight, int64_t out, int64_t in, const float* x, int64_t rows, float beta,
                              float* y, cudaStream_t stream) {
  for (int64_t done = 0; done < rows; done += kMostRowsTogether) {
    const int64_t n = std::min<int64_t>(rows - done, kMostRowsTogether);
    const auto launch = n == 1   ? few_rows<Format, 1, 1>
                        : n == 2 ? few_rows<Format, 2, 2>
                        : n <= 4 ? few_rows<Format, 4, 4>
                                 : few_rows<Format, 8, 4>;
    launch(weight, out, in, x + done * in, n, beta, y + done * out, stream);
  }
  return cudaGetLastError();
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

// Calls `body` with the format of `dtype` and the numbers as it has them.
template <typename Body>
cudaError_t with_format(const void* numbers, kvq_dtype dtype, Body body) {
  if (dtype == KVQ_F32) {
    body(Float32(), static_cast<const float*>(numbers));
  } else if (dtype == KVQ_F16) {
    body(Float16(), static_cast<const uint16_t*>(numbers));
  } else {
    body(BFloat16(), static_cast<const uint16_t*>(numbers));
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_embed(const void* embedding, kvq_dtype dtype, const int32_t* tokens, int64_t n, int64_t width,
                         float* x, cudaStream_t stream) {
  return with_format(embedding, dtype, [=]<typename Format>(Format, const typename Format::Bits* numbers) {
    embed_kernel<Format><<<static_cast<unsigned>(n), threads_for(width), 0, stream>>>(numbers, tokens, width, x);
  });
}

cudaError_t launch_widen(const void* numbers, kvq_dtype dtype, int64_t n, float* out, cudaStream_t stream) {
  return with_format(numbers, dtype, [=]<typename Format>(Format, const typename Format::Bits* bits) {
    widen_kernel<Format><<<blocks_for(n), kThreads, 0, stream>>>(bits, n, out);
  });
}

bool can_multiply_few_rows(kvq_dtype dtype, int64_t in) { return dtype != KVQ_F32 && in % kChunk == 0; }

cudaError_t launch_multiply_few_rows(const void* weight, kvq_dtype dtype, int64_t out, int64_t in, const float* x,
                                     int64_t rows, float beta, float* y, cudaStream_t stream) {
  const auto multiply = dtype == KVQ_F16 ? multiply_few_rows<Float16> : multiply_few_rows<BFloat16>;
  return multiply(static_cast<const uint16_t*>(weight), out, in, x, rows, beta, y, stream);
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
