#include "kernels/train/values.h"

#include "kernels/device/warp.cuh"
#include "kernels/train/products.cuh"

#include <cuda_fp16.h>

namespace kvq::cuda {
namespace {

constexpr int32_t kWarps = 4;
constexpr int32_t kThreads = kWarps * kWarpLanes;

// Equal to ValueEncoder's constants.
constexpr float kLeastGain = 1e-6F;
constexpr int64_t kMostFlipsOfBit = 8;
constexpr float kMostHalf = 65504.0F;

__device__ bool is_bit_set(const uint32_t* packed, int32_t bit) { return (packed[bit / 32] >> (bit % 32) & 1U) != 0; }

/// Vectors with a 1 appended.
struct Extended {
  static constexpr bool kAlongDepth = false;
  const float* units;
  int32_t width;

  __device__ float operator()(int32_t line, int32_t token) const {
    return line == width ? 1.0F : units[int64_t{token} * width + line];
  }
};

/// The scale for every set bit, with the scale appended.
struct ScaledBits {
  static constexpr bool kAlongDepth = false;
  FoundBits found;
  int32_t bits;

  __device__ float operator()(int32_t line, int32_t token) const {
    const bool counts = line == bits || is_bit_set(found.packed + int64_t{token} * found.words, line);
    return counts ? found.scales[token] : 0.0F;
  }
};

struct BitSigns {
  static constexpr bool kAlongDepth = false;
  FoundBits found;

  __device__ float operator()(int32_t line, int32_t token) const {
    return is_bit_set(found.packed + int64_t{token} * found.words, line) ? 1.0F : -1.0F;
  }
};

/// Rows of packed bits.
struct PackedRows {
  static constexpr bool kAlongDepth = true;
  FoundBits found;

  __device__ float operator()(int32_t token, int32_t bit) const {
    return is_bit_set(found.packed + int64_t{token} * found.words, bit) ? 1.0F : 0.0F;
  }
};

struct StoreGram {
  float* gram;
  float* half_norms;
  int32_t bits;

  __device__ void operator()(int32_t row, int32_t column, float sum) const {
    gram[int64_t{row} * bits + column] = sum;
    if (row == column) half_norms[row] = sum / 2.0F;
  }
};

struct StoreGuess {
  float* bits;
  int32_t stride;
  const float* bias;

  __device__ void operator()(int32_t row, int32_t column, float sum) const {
    bits[int64_t{row} * stride + column] = sum + bias[column] > 0.0F ? 1.0F : 0.0F;
  }
};

/// Stores the residuals of decoded sums of codes.
struct StoreRest {
  float* rest;
  const float* units;
  const float* scales;
  const float* offset;
  int32_t width;

  __device__ void operator()(int32_t row, int32_t column, float sum) const {
    const int64_t at = int64_t{row} * width + column;
    rest[at] = units[at] - scales[row] * (offset[column] + sum);
  }
};

__global__ void offsets_kernel(DeviceValueCode code) {
  const auto channel = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
  const auto stage = static_cast<int32_t>(blockIdx.y);
  if (channel >= code.width) return;
  float sum = code.offset[channel];
  for (int32_t bit = code.stage_end(stage); bit < code.bits; ++bit) {
    sum += code.codes[int64_t{bit} * code.width + channel] / 2.0F;  // bits of later stages count as one half
  }
  code.offsets[int64_t{stage} * code.width + channel] = sum;
}

/// One bit per warp; the last warp computes the offset's squared length.
__global__ void __launch_bounds__(kThreads) offset_products_kernel(DeviceValueCode code) {
  const auto warp = static_cast<int32_t>(threadIdx.x) / kWarpLanes;
  const auto lane = static_cast<int32_t>(threadIdx.x) % kWarpLanes;
  const int32_t bit = static_cast<int32_t>(blockIdx.x) * kWarps + warp;
  const auto stage = static_cast<int32_t>(blockIdx.y);
  if (bit > code.bits) return;
  const float* offset = code.offsets + int64_t{stage} * code.width;
  const float* other = bit == code.bits ? offset : code.codes + int64_t{bit} * code.width;
  double sum = 0.0;
  for (int32_t c = lane; c < code.width; c += kWarpLanes) {
    sum += static_cast<double>(offset[c]) * static_cast<double>(other[c]);
  }
  sum = sum_of_lanes(sum);
  if (lane != 0) return;
  if (bit == code.bits) {
    code.offset_norms[stage] = sum;
  } else {
    code.offset_products[int64_t{stage} * code.bits + bit] = static_cast<float>(sum);
  }
}

/// Shared memory for flipping bits of a vector.
struct FlipMemory {
  double sums[3][kWarps];
  Placed best[kWarps];
};

/// Returns the sum over all threads to each of them.
__device__ double sum_of_block(double number, double (&of_warp)[kWarps]) {
  number = sum_of_lanes(number);
  if (threadIdx.x % kWarpLanes == 0) of_warp[threadIdx.x / kWarpLanes] = number;
  __syncthreads();
  double sum = 0.0;
  for (const double each : of_warp) sum += each;
  return sum;
}

/// One vector per block: flips the bit that lowers the error most, one at a time (ValueEncoder::flip). A thread owns
/// every kThreads-th bit, so only the choice of the best needs the whole block.
__global__ void __launch_bounds__(kThreads) flip_kernel(DeviceValueCode code, ValueSearch search, int32_t stage) {
  __shared__ FlipMemory memory;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const auto token = static_cast<int64_t>(blockIdx.x);
  const int32_t end = code.stage_end(stage);
  const float* unit = search.units + token * code.width;
  const float* wanted = search.wanted + token * code.bits;
  float* decoded = search.decoded + token * code.bits;
  float* bits = search.bits + token * code.bits;
  const float* offset = code.offsets + int64_t{stage} * code.width;
  const float* offset_products = code.offset_products + int64_t{stage} * code.bits;

  double product = 0.0;  // ⟨u, w⟩ of the vector and its decoded code
  double norm = 0.0;     // ⟨w, w⟩
  double length = 0.0;
  for (int32_t c = thread; c < code.width; c += kThreads) {
    product += static_cast<double>(offset[c]) * static_cast<double>(unit[c]);
    length += static_cast<double>(unit[c]) * static_cast<double>(unit[c]);
  }
  for (int32_t n = thread; n < end; n += kThreads) {
    decoded[n] += offset_products[n];
    if (bits[n] == 0.0F) continue;
    product += static_cast<double>(wanted[n]);
    norm += static_cast<double>(decoded[n]) + static_cast<double>(offset_products[n]);
  }
  product = sum_of_block(product, memory.sums[0]);
  norm = sum_of_block(norm, memory.sums[1]) + code.offset_norms[stage];
  length = sum_of_block(length, memory.sums[2]);
  if (length == 0.0) {  // uniform over the block
    if (thread == 0) search.scales[token] = 0.0F;
    return;
  }

  const int64_t most = kMostFlipsOfBit * end;
  int32_t changed = -1;
  float change = 0.0F;
  for (int64_t flips = 0;; ++flips) {
    const float inverse_scale = product > 0.0 && norm > 0.0 ? static_cast<float>(norm / product) : 1.0F;
    const float* gram_row = code.gram + int64_t{max(changed, 0)} * code.bits;
    Placed best{INFINITY, INT32_MAX};  // by negated gain
    for (int32_t n = thread; n < end; n += kThreads) {
      if (changed >= 0) decoded[n] += change * gram_row[n];
      if (n == changed) bits[n] = 1.0F - bits[n];
      const float missing = inverse_scale * wanted[n] - decoded[n];
      const Placed each{code.half_norms[n] - (1.0F - 2.0F * bits[n]) * missing, n};
      if (comes_before(each, best)) best = each;
    }
    best = first_of_lanes(best);
    if (thread % kWarpLanes == 0) memory.best[thread / kWarpLanes] = best;
    __syncthreads();
    best = memory.best[0];
    for (int32_t warp = 1; warp < kWarps; ++warp) {
      if (comes_before(memory.best[warp], best)) best = memory.best[warp];
    }
    if (!(best.number < -kLeastGain) || flips == most) break;
    changed = best.place;
    change = 1.0F - 2.0F * bits[changed];
    product += static_cast<double>(change) * static_cast<double>(wanted[changed]);
    norm += 2.0 * (static_cast<double>(change) * static_cast<double>(decoded[changed]) +
                   static_cast<double>(code.half_norms[changed]));
    __syncthreads();  // all threads have read the values that the bit's owner changes
  }
  if (thread == 0) search.scales[token] = product > 0.0 && norm > 0.0 ? static_cast<float>(product / norm) : 0.0F;
}

/// One vector per warp.
__global__ void __launch_bounds__(kThreads) pack_kernel(int32_t bits, ValueSearch search, FoundBits found) {
  const auto warp = static_cast<int32_t>(threadIdx.x) / kWarpLanes;
  const auto lane = static_cast<int32_t>(threadIdx.x) % kWarpLanes;
  const int32_t token = static_cast<int32_t>(blockIdx.x) * kWarps + warp;
  if (token >= search.n) return;
  const float scale = __half2float(__float2half_rn(fminf(search.scales[token], kMostHalf)));
  const float* row = search.bits + int64_t{token} * bits;
  for (int32_t word = 0; word < found.words; ++word) {
    const int32_t bit = 32 * word + lane;
    const uint32_t packed = __ballot_sync(0xFFFFFFFFU, scale != 0.0F && bit < bits && row[bit] != 0.0F);
    if (lane == 0) found.packed[int64_t{token} * found.words + word] = packed;
  }
  if (lane == 0) found.scales[token] = scale;
}

/// One row per warp.
__global__ void __launch_bounds__(kThreads)
    row_norms_kernel(float* rows, int32_t width, int32_t n, bool normalize, double* squares) {
  const auto warp = static_cast<int32_t>(threadIdx.x) / kWarpLanes;
  const auto lane = static_cast<int32_t>(threadIdx.x) % kWarpLanes;
  const int32_t at = static_cast<int32_t>(blockIdx.x) * kWarps + warp;
  if (at >= n) return;
  float* row = rows + int64_t{at} * width;
  double sum = 0.0;
  for (int32_t c = lane; c < width; c += kWarpLanes) {
    sum += static_cast<double>(row[c]) * static_cast<double>(row[c]);
  }
  sum = sum_of_lanes(sum);
  if (lane == 0 && squares != nullptr) squares[at] = sum;
  if (!normalize) return;
  const float inverse = sum > 0.0 ? static_cast<float>(1.0 / sqrt(sum)) : 0.0F;
  for (int32_t c = lane; c < width; c += kWarpLanes) row[c] *= inverse;
}

uint32_t blocks_of(int32_t rows) { return static_cast<uint32_t>((rows + kWarps - 1) / kWarps); }

}  // namespace

cudaError_t launch_prepare_code(const DeviceValueCode& code, cudaStream_t stream) {
  const Rows codes{code.codes, code.width};
  cudaError_t status = multiply(codes, codes, code.bits, code.bits, code.width,
                                StoreGram{code.gram, code.half_norms, code.bits}, stream);
  if (status != cudaSuccess) return status;
  const auto stages = static_cast<uint32_t>(code.stages);
  const auto blocks = static_cast<uint32_t>((code.width + kThreads - 1) / kThreads);
  offsets_kernel<<<dim3(blocks, stages), kThreads, 0, stream>>>(code);
  status = cudaGetLastError();
  if (status != cudaSuccess) return status;
  offset_products_kernel<<<dim3(blocks_of(code.bits + 1), stages), kThreads, 0, stream>>>(code);
  return cudaGetLastError();
}

cudaError_t launch_value_stage(const DeviceValueCode& code, const ValueSearch& search, int32_t stage,
                               cudaStream_t stream) {
  const int32_t width = code.width;
  const int32_t first = stage * width;
  const int32_t end = code.stage_end(stage);
  const float* own_codes = code.codes + int64_t{first} * width;
  const Rows units{search.units, width};
  Rows guessed = units;  // vectors to propose bits for
  cudaError_t status = cudaSuccess;
  if (stage > 0) {
    const StoreRest rest{search.rest, search.units, search.scales, code.offsets + int64_t{stage - 1} * width, width};
    status = multiply(Rows{search.bits, code.bits}, Columns{code.codes, width}, search.n, width, first, rest, stream);
    if (status == cudaSuccess) status = launch_row_norms(search.rest, width, search.n, true, nullptr, stream);
    guessed.data = search.rest;
  }
  if (status == cudaSuccess) {
    status = multiply(guessed, Rows{code.proposal + int64_t{first} * width, width}, search.n, end - first, width,
                      StoreGuess{search.bits + first, code.bits, code.proposal_bias + first}, stream);
  }
  if (status == cudaSuccess) {
    status = multiply(units, Rows{own_codes, width}, search.n, end - first, width,
                      Store{search.wanted + first, code.bits}, stream);
  }
  if (status == cudaSuccess) {
    status = multiply(Rows{search.bits, code.bits}, Rows{code.gram, code.bits}, search.n, end, end,
                      Store{search.decoded, code.bits}, stream);
  }
  if (status != cudaSuccess) return status;
  flip_kernel<<<static_cast<uint32_t>(search.n), kThreads, 0, stream>>>(code, search, stage);
  return cudaGetLastError();
}

cudaError_t launch_pack_bits(const DeviceValueCode& code, const ValueSearch& search, const FoundBits& found,
                             cudaStream_t stream) {
  pack_kernel<<<blocks_of(search.n), kThreads, 0, stream>>>(code.bits, search, found);
  return cudaGetLastError();
}

cudaError_t launch_subtract_values(const DeviceValueCode& code, const FoundBits& found, const float* units, int32_t n,
                                   float* rest, cudaStream_t stream) {
  return multiply(PackedRows{found}, Columns{code.codes, code.width}, n, code.width, code.bits,
                  StoreRest{rest, units, found.scales, code.offset, code.width}, stream);
}

cudaError_t launch_row_norms(float* rows, int32_t width, int32_t n, bool normalize, double* squares,
                             cudaStream_t stream) {
  row_norms_kernel<<<blocks_of(n), kThreads, 0, stream>>>(rows, width, n, normalize, squares);
  return cudaGetLastError();
}

cudaError_t sum_moments(const float* units, int32_t width, int32_t n, double* parts, double* sums,
                        cudaStream_t stream) {
  const Extended input{units, width};
  return sum_products<true>(input, input, width + 1, width + 1, n, parts, sums, stream);
}

cudaError_t sum_code_pairs(const FoundBits& found, int32_t bits, int32_t n, double* parts, double* sums,
                           cudaStream_t stream) {
  const ScaledBits factors{found, bits};
  return sum_products<true>(factors, factors, bits + 1, bits + 1, n, parts, sums, stream);
}

cudaError_t sum_code_sides(const FoundBits& found, int32_t bits, const float* units, int32_t width, int32_t n,
                           double* parts, double* sums, cudaStream_t stream) {
  return sum_products<false>(ScaledBits{found, bits}, Columns{units, width}, bits + 1, width, n, parts, sums, stream);
}

cudaError_t sum_signs(const FoundBits& found, int32_t bits, const float* units, int32_t width, int32_t n, double* parts,
                      double* sums, cudaStream_t stream) {
  return sum_products<false>(Extended{units, width}, BitSigns{found}, width + 1, bits, n, parts, sums, stream);
}

}  // namespace kvq::cuda
