#include "kernels.h"

#include <cuda_bf16.h>
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

struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct Maximum {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// `combine` of the values of all threads of a block of whole warps, in every thread. Once a kernel: the shared memory
// is not reused.
template <typename Combine>
__device__ float over_block(Combine combine, float value) {
  __shared__ float of_warps[kMaxThreads / kWarp];
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffU, value, distance));
  }
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  float total = of_warps[0];
  for (unsigned warp = 1; warp < blockDim.x / kWarp; ++warp) total = combine(total, of_warps[warp]);
  return total;
}

// How numbers are stored, what they are as floats, and what floats are as such numbers, to within 1 / kPrecision.
struct Float32 {
  using Bits = float;
  static __device__ float widen(float number) { return number; }
};
struct Float16 {
  using Bits = uint16_t;
  static constexpr float kPrecision = 2048.0F;
  static __device__ float widen(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
  static __device__ uint16_t narrow(float number) { return __half_as_ushort(__float2half_rn(number)); }
};
struct BFloat16 {
  using Bits = uint16_t;
  static constexpr float kPrecision = 256.0F;
  static __device__ float widen(uint16_t bits) { return __uint_as_float(static_cast<uint32_t>(bits) << 16); }
  static __device__ uint16_t narrow(float number) { return __bfloat16_as_ushort(__float2bfloat16_rn(number)); }
};

template <typename Format>
__global__ void embed_kernel(const typename Format::Bits* embedding, const int32_t* tokens, int64_t width, float scale,
                             float* x) {
  const typename Format::Bits* row = embedding + tokens[blockIdx.x] * width;
  float* out = x + blockIdx.x * width;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) out[i] = scale * Format::widen(row[i]);
}

constexpr int kChunk = 8;     // numbers of 16 bits that a thread reads at once
constexpr int kMostRows = 4;  // of few: more are faster by tensor cores

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

// A row in parts, each what those before it left, times kPrecision: together they have all bits of a float. The row is
// scaled first, so that its largest number is between 1 and 2: what is too small for FP16 does not matter beside it.
template <typename Format>
__global__ void split_kernel(const float* x, int64_t in, uint16_t* parts, float* scales) {
  const float* row = x + blockIdx.x * in;
  float largest = 0.0F;
  for (int64_t i = threadIdx.x; i < in; i += blockDim.x) largest = fmaxf(largest, fabsf(row[i]));
  largest = over_block(Maximum(), largest);
  const int exponent = largest > 0.0F && isfinite(largest) ? ilogbf(largest) : 0;
  if (threadIdx.x == 0) scales[blockIdx.x] = ldexpf(1.0F, exponent);

  const int64_t part = gridDim.x * in;
  uint16_t* out = parts + blockIdx.x * in;
  for (int64_t i = threadIdx.x; i < in; i += blockDim.x) {
    float rest = ldexpf(row[i], -exponent);
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      const uint16_t bits = Format::narrow(rest);
      out[p * part + i] = bits;
      rest = (rest - Format::widen(bits)) * Format::kPrecision;
    }
  }
}

template <typename Format>
__global__ void join_kernel(const float* products, const float* scales, int64_t count, int64_t out, float beta,
                            float* y) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const int64_t row = blockIdx.y;
  const int64_t part = gridDim.y * count;
  float sum = 0.0F;
#pragma unroll
  for (int p = kParts - 1; p >= 0; --p) sum = sum / Format::kPrecision + products[p * part + row * count + i];
  sum *= scales[row];
  float& result = y[row * out + i];
  result = beta == 0.0F ? sum : fmaf(beta, result, sum);
}

__global__ void rms_norm_kernel(const float* x, const float* weight, float epsilon, int64_t width, float* y) {
  const float* row = x + blockIdx.x * width;
  float* out = y + blockIdx.x * width;
  float squares = 0.0F;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) squares += row[i] * row[i];
  const float mean_square = over_block(Sum(), squares) / static_cast<float>(width);
  const float factor = 1.0F / sqrtf(mean_square + epsilon);
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) out[i] = row[i] * factor * weight[i];
}

__global__ void swiglu_kernel(float* gate, const float* up, int64_t n) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) gate[i] = gate[i] / (1.0F + expf(-gate[i])) * up[i];
}

__global__ void geglu_kernel(float* gate, const float* up, int64_t n) {
  constexpr float kFactor = 0.7978845608F;  // sqrt(2 / pi)
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float x = gate[i];
  gate[i] = 0.5F * x * (1.0F + tanhf(kFactor * (x + 0.044715F * x * x * x))) * up[i];
}

__global__ void softcap_kernel(float cap, int64_t n, float* x) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) x[i] = cap * tanhf(x[i] / cap);
}

__global__ void add_kernel(const float* x, int64_t n, float* y) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) y[i] += x[i];
}

__global__ void add_bias_kernel(const float* bias, int64_t n, int64_t width, float* y) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) y[i] += bias[i % width];
}

// Calls `body` with the format of a `dtype` of 16 bits.
template <typename Body>
cudaError_t with_short_format(kvq_dtype dtype, Body body) {
  if (dtype == KVQ_F16) {
    body(Float16());
  } else {
    body(BFloat16());
  }
  return cudaGetLastError();
}

template <typename Body>
cudaError_t with_format(kvq_dtype dtype, Body body) {
  if (dtype != KVQ_F32) return with_short_format(dtype, body);
  body(Float32());
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_embed(const void* embedding, kvq_dtype dtype, const int32_t* tokens, int64_t n, int64_t width,
                         float scale, float* x, cudaStream_t stream) {
  return with_format(dtype, [=]<typename Format>(Format) {
    const auto* numbers = static_cast<const typename Format::Bits*>(embedding);
    embed_kernel<Format><<<static_cast<unsigned>(n), threads_for(width), 0, stream>>>(numbers, tokens, width, scale, x);
  });
}

bool can_multiply_few_rows(kvq_dtype dtype, int64_t in, int64_t rows) {
  return dtype != KVQ_F32 && in % kChunk == 0 && rows <= kMostRows;
}

cudaError_t launch_multiply_few_rows(const void* weight, kvq_dtype dtype, int64_t out, int64_t in, const float* x,
                                     int64_t rows, float beta, float* y, cudaStream_t stream) {
  return with_short_format(dtype, [=]<typename Format>(Format) {
    const auto launch = rows == 1   ? few_rows<Format, 1, 1>
                        : rows == 2 ? few_rows<Format, 2, 2>
                                    : few_rows<Format, kMostRows, 4>;
    launch(static_cast<const uint16_t*>(weight), out, in, x, rows, beta, y, stream);
  });
}

cudaError_t launch_split(const float* x, int64_t rows, int64_t in, kvq_dtype dtype, void* parts, float* scales,
                         cudaStream_t stream) {
  return with_short_format(dtype, [=]<typename Format>(Format) {
    split_kernel<Format>
        <<<static_cast<unsigned>(rows), threads_for(in), 0, stream>>>(x, in, static_cast<uint16_t*>(parts), scales);
  });
}

cudaError_t launch_join(const float* products, const float* scales, kvq_dtype dtype, int64_t rows, int64_t count,
                        int64_t out, float beta, float* y, cudaStream_t stream) {
  return with_short_format(dtype, [=]<typename Format>(Format) {
    const dim3 blocks(blocks_for(count), static_cast<unsigned>(rows));
    join_kernel<Format><<<blocks, kThreads, 0, stream>>>(products, scales, count, out, beta, y);
  });
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

cudaError_t launch_geglu(float* gate, const float* up, int64_t n, cudaStream_t stream) {
  geglu_kernel<<<blocks_for(n), kThreads, 0, stream>>>(gate, up, n);
  return cudaGetLastError();
}

cudaError_t launch_softcap(float cap, int64_t n, float* x, cudaStream_t stream) {
  softcap_kernel<<<blocks_for(n), kThreads, 0, stream>>>(cap, n, x);
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
