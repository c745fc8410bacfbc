// Encodes values to bits. Follows the host's ValueEncoder operation by operation, so that pages are the same bytes.
#include "formats/commvq/value_network_layers.h"
#include "kernels/commvq/codebook.cuh"
#include "kernels/device/warp.cuh"

#include <algorithm>

namespace kvq::cuda {
namespace {

constexpr int32_t kThreads = 256;
constexpr int32_t kWarps = kThreads / kWarpLanes;

// Equal to ValueEncoder's constants.
constexpr float kLeastGain = 1e-6F;
constexpr int32_t kMostFlipsOfBit = 8;
constexpr double kMostScale = 2.0;

/// Blocks of 32 rows, one per token, that share codes.
struct Rows {
  const CommvqPages& all;

  __host__ __device__ const ValueTables& tables() const { return all.tables.values; }
  __host__ __device__ int32_t blocks() const { return tables().of_layer() ? all.groups : all.count(); }
  __host__ __device__ int32_t count() const { return blocks() * kSlots; }
  /// Index of the codes of a block of rows.
  __device__ int32_t vector(int32_t block) const { return tables().of_layer() ? 0 : all.pages[block].head; }
};

// Products are summed in order of depth, without FMA contraction.

constexpr int32_t kColumns = 128;  // tile width; its height is the 32 rows of a block
constexpr int32_t kDepth = 16;
constexpr int32_t kSquare = 4;  // a thread computes kSquare × kSquare sums

__device__ __forceinline__ float number_of(float number) { return number; }
__device__ __forceinline__ float number_of(uint16_t half) { return __half2float(__ushort_as_half(half)); }

/// A matrix per vector; `line` and `step` are the strides of lines and of depth.
template <typename Number>
struct Matrix {
  const Number* data;
  int64_t of_vector;
  int64_t line;
  int64_t step;

  __device__ float at(int32_t vector, int32_t l, int32_t depth) const {
    return number_of(__ldg(data + vector * of_vector + l * line + depth * step));
  }
};

template <bool kAlongDepth, typename Number, typename Use>
__global__ void __launch_bounds__(kThreads) product_kernel(CommvqPages all, Matrix<Number> matrix, int32_t lines,
                                                           int32_t depth, const float* rows, int32_t stride, Use use) {
  __shared__ __align__(16) float left[kDepth][kSlots + 4];
  __shared__ __align__(16) float right[kDepth][kColumns + 4];
  const int32_t vector = Rows{all}.vector(static_cast<int32_t>(blockIdx.x));
  const int32_t first_row = static_cast<int32_t>(blockIdx.x) * kSlots;
  const int32_t first_line = static_cast<int32_t>(blockIdx.y) * kColumns;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t row = kSquare * (thread / (kColumns / kSquare));
  const int32_t column = kSquare * (thread % (kColumns / kSquare));
  float sums[kSquare][kSquare] = {};
  for (int32_t at = 0; at < depth; at += kDepth) {
#pragma unroll
    for (int32_t i = thread; i < kSlots * kDepth; i += kThreads) {
      const int32_t d = at + i % kDepth;
      left[i % kDepth][i / kDepth] = d < depth ? rows[int64_t{first_row + i / kDepth} * stride + d] : 0.0F;
    }
#pragma unroll
    for (int32_t i = thread; i < kColumns * kDepth; i += kThreads) {
      const int32_t l = kAlongDepth ? i / kDepth : i % kColumns;
      const int32_t d = kAlongDepth ? i % kDepth : i / kColumns;
      const bool inside = first_line + l < lines && at + d < depth;
      right[d][l] = inside ? matrix.at(vector, first_line + l, at + d) : 0.0F;
    }
    __syncthreads();
#pragma unroll
    for (int32_t d = 0; d < kDepth; ++d) {
      const float4 x = *reinterpret_cast<const float4*>(&left[d][row]);
      const float4 y = *reinterpret_cast<const float4*>(&right[d][column]);
      const float of_row[kSquare] = {x.x, x.y, x.z, x.w};
      const float of_column[kSquare] = {y.x, y.y, y.z, y.w};
#pragma unroll
      for (int32_t i = 0; i < kSquare; ++i) {
#pragma unroll
        for (int32_t j = 0; j < kSquare; ++j) sums[i][j] = sums[i][j] + of_column[j] * of_row[i];
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int32_t i = 0; i < kSquare; ++i) {
#pragma unroll
    for (int32_t j = 0; j < kSquare; ++j) {
      const int32_t line = first_line + column + j;
      if (line < lines) use(vector, first_row + row + i, line, sums[i][j]);
    }
  }
}

/// Calls use(vector, row, line, Σ over depth of matrix(line, depth) · row(depth)).
template <typename Number, typename Use>
void multiply(const CommvqPages& all, const Matrix<Number>& matrix, int32_t lines, int32_t depth, const float* rows,
              int32_t stride, const Use& use, cudaStream_t stream) {
  const dim3 grid(static_cast<uint32_t>(Rows{all}.blocks()), static_cast<uint32_t>((lines + kColumns - 1) / kColumns));
  if (matrix.step == 1) {
    product_kernel<true><<<grid, kThreads, 0, stream>>>(all, matrix, lines, depth, rows, stride, use);
  } else {
    product_kernel<false><<<grid, kThreads, 0, stream>>>(all, matrix, lines, depth, rows, stride, use);
  }
}

struct Store {
  float* to;
  int32_t stride;

  __device__ void operator()(int32_t /*vector*/, int32_t row, int32_t line, float sum) const {
    to[int64_t{row} * stride + line] = sum;
  }
};

struct StoreBiased {
  float* to;
  int32_t stride;
  const float* bias;  // [vectors][stride]

  __device__ void operator()(int32_t vector, int32_t row, int32_t line, float sum) const {
    to[int64_t{row} * stride + line] = sum + bias[int64_t{vector} * stride + line];
  }
};

struct StoreUnit {
  StoreBiased biased;

  __device__ void operator()(int32_t vector, int32_t row, int32_t line, float sum) const {
    const float x = sum + biased.bias[int64_t{vector} * biased.stride + line];
    biased.to[int64_t{row} * biased.stride + line] = static_cast<float>(network::Gelu(x).value);
  }
};

struct StoreBit {
  float* to;
  int32_t stride;
  const float* bias;

  __device__ void operator()(int32_t vector, int32_t row, int32_t line, float sum) const {
    to[int64_t{row} * stride + line] = sum + bias[int64_t{vector} * stride + line] > 0.0F ? 1.0F : 0.0F;
  }
};

/// Loads values divided by their channel's scale; each row is a token's vector.
__global__ void __launch_bounds__(kThreads) read_values_kernel(CommvqPages all, float* to) {
  const ValueTables& tables = all.tables.values;
  const CommvqPage page = all.pages[blockIdx.x];
  const int32_t dim = all.tables.head_dim;
  const int32_t group = static_cast<int32_t>(blockIdx.x) / all.members;
  const int32_t member = static_cast<int32_t>(blockIdx.x) % all.members;
  const int32_t block = tables.of_layer() ? group : static_cast<int32_t>(blockIdx.x);
  const int32_t first = tables.of_layer() ? member * dim : 0;
  const float* scale = tables.channel_scale + int64_t{tables.of_layer() ? 0 : page.head} * tables.width + first;
  const auto* halves = reinterpret_cast<const std::byte*>(page.source) + all.source_values;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < kSlots * dim; i += kThreads) {
    const int32_t slot = i / dim;
    const int32_t channel = i % dim;
    const int32_t place = float16_place(Side::kValues, dim, slot, channel);
    const float x = __half2float(*reinterpret_cast<const __half*>(halves + place));
    to[int64_t{block * kSlots + slot} * tables.width + first + channel] = x / scale[channel];
  }
}

/// Length of a row, by a serial sum in double.
__device__ double length_of(float* row, int32_t width) {
  double sum = 0.0;
#pragma unroll 8
  for (int32_t c = 0; c < width; ++c) {
    const double x{row[c]};
    sum += x * x;
  }
  return sqrt(sum);
}

__global__ void __launch_bounds__(kWarpLanes) lengths_kernel(float* rows, int32_t width, double* norms) {
  const auto i = static_cast<int32_t>(blockIdx.x * kWarpLanes + threadIdx.x);
  norms[i] = length_of(rows + int64_t{i} * width, width);
}

__global__ void __launch_bounds__(kThreads) divide_kernel(float* rows, int32_t width, const double* norms) {
  const double norm = norms[blockIdx.x];
  const auto inverse = static_cast<float>(norm > 0.0 ? 1.0 / norm : 0.0);
  float* row = rows + int64_t{blockIdx.x} * width;
  for (auto c = static_cast<int32_t>(threadIdx.x); c < width; c += kThreads) row[c] *= inverse;
}

/// residual = unit − scale · (offset + residual).
__global__ void __launch_bounds__(kThreads) subtract_kernel(CommvqPages all, ValueWork work, int32_t stage) {
  const ValueTables& tables = all.tables.values;
  const auto row = static_cast<int32_t>(blockIdx.x);
  const int64_t vector = Rows{all}.vector(row / kSlots);
  const float* offset = tables.offsets + (vector * tables.stages + stage) * tables.width;
  const float scale = work.scales[row];
  for (auto c = static_cast<int32_t>(threadIdx.x); c < tables.width; c += kThreads) {
    float& residual = work.residual[int64_t{row} * tables.width + c];
    residual = work.unit[int64_t{row} * tables.width + c] - scale * (offset[c] + residual);
  }
}

/// network::standardize, then gain and bias; one row per thread for the sums.
__global__ void __launch_bounds__(kWarpLanes) standardize_kernel(CommvqPages all, const float* unit, float* to) {
  const ValueTables& tables = all.tables.values;
  const int32_t width = tables.width;
  const auto row = static_cast<int32_t>(blockIdx.x * kWarpLanes + threadIdx.x);
  const float* from = unit + int64_t{row} * width;
  double sum = 0.0;
  double squares = 0.0;
#pragma unroll 8
  for (int32_t c = 0; c < width; ++c) {
    const double x{from[c]};
    sum += x;
    squares += x * x;
  }
  const auto n = static_cast<double>(width);
  sum /= n;
  squares = 1.0 / sqrt(fmax(squares / n - sum * sum, 0.0) + network::kEpsilon / n);
  const int64_t vector = Rows{all}.vector(row / kSlots);
  const float* gain = tables.network.norm_gain + vector * width;
  const float* bias = tables.network.norm_bias + vector * width;
  for (int32_t c = 0; c < width; ++c) {
    const auto x = static_cast<float>((double{from[c]} - sum) * squares);
    to[int64_t{row} * width + c] = x * gain[c] + bias[c];
  }
}

/// Picks the largest of four outputs per pair of bits; ties go to the first.
__global__ void __launch_bounds__(kThreads) choose_kernel(const float* outputs, int32_t bits, float* bit) {
  outputs += int64_t{blockIdx.x} * 2 * bits;
  bit += int64_t{blockIdx.x} * bits;
  for (auto pair = static_cast<int32_t>(threadIdx.x); 2 * pair < bits; pair += kThreads) {
    const float* four = outputs + 4 * pair;
    int32_t choice = 0;
    for (int32_t k = 1; k < 4; ++k) {
      if (four[k] > four[choice]) choice = k;
    }
    bit[2 * pair] = (choice & 1) != 0 ? 1.0F : 0.0F;
    bit[2 * pair + 1] = (choice & 2) != 0 ? 1.0F : 0.0F;
  }
}

/// The best flip known to a thread, warp or block, and the values that it changes.
struct Flip {
  float gain;
  int32_t bit;
  float wanted;
  float decoded;
  float step;
  float half_norm;

  __device__ bool is_better_than(const Flip& other) const {
    return gain > other.gain || (gain == other.gain && bit < other.bit);
  }
};

/// ⟨u, w⟩ and ⟨w, w⟩ of a unit vector u and its decoded code w (ValueEncoder::Search).
struct Scale {
  double product;
  double norm;

  __device__ bool exists() const { return product > 0.0 && norm > 0.0; }
  __device__ double best() const { return exists() ? product / norm : 0.0; }
  __device__ double unbiased() const {
    return exists() && norm <= kMostScale * product * product ? 1.0 / product : best();
  }
  __device__ float inverse() const { return exists() ? static_cast<float>(norm / product) : 1.0F; }
};

/// A block flips bits of one row; each thread owns every 256th bit.
template <int kOwn>
__global__ void __launch_bounds__(kThreads)
    flip_kernel(CommvqPages all, ValueWork work, int32_t stage, int32_t max_flips) {
  __shared__ double start[2];
  __shared__ Flip candidates[2][kWarps];
  const ValueTables& tables = all.tables.values;
  const auto row = static_cast<int32_t>(blockIdx.x);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  if (work.norms[row] == 0.0) {
    if (thread == 0) work.scales[row] = 0.0F;
    return;
  }
  const int64_t vector = Rows{all}.vector(row / kSlots);
  const int32_t bits = tables.bits;
  const int32_t end = tables.stage_end(stage);
  const float* gram = tables.gram + vector * bits * bits;
  const float* of_decoded = work.decoded + int64_t{row} * bits;
  const float* of_wanted = work.wanted + int64_t{row} * bits;
  float* of_bit = work.bit + int64_t{row} * bits;
  const float* products = tables.offset_products + (vector * tables.stages + stage) * bits;
  float wanted[kOwn];
  float decoded[kOwn];
  float step[kOwn];
  float half_norm[kOwn];
#pragma unroll
  for (int32_t k = 0; k < kOwn; ++k) {
    const int32_t n = thread + k * kThreads;
    const bool exists = n < end;
    wanted[k] = exists ? of_wanted[n] : 0.0F;
    decoded[k] = exists ? of_decoded[n] + products[n] : 0.0F;
    step[k] = exists ? 1.0F - 2.0F * of_bit[n] : 0.0F;
    half_norm[k] = exists ? gram[int64_t{n} * bits + n] / 2.0F : 1.0F;
  }
  if (thread == 0) {
    const float* offset = tables.offsets + (vector * tables.stages + stage) * tables.width;
    const float* unit = work.unit + int64_t{row} * tables.width;
    double product = 0.0;
#pragma unroll 8
    for (int32_t c = 0; c < tables.width; ++c) product += double{offset[c]} * double{unit[c]};
#pragma unroll 8
    for (int32_t n = 0; n < end; ++n) {
      if (of_bit[n] != 0.0F) product += double{of_wanted[n]};
    }
    start[0] = product;
  } else if (thread == kWarpLanes) {
    double norm = tables.offset_norms[vector * tables.stages + stage];
#pragma unroll 8
    for (int32_t n = 0; n < end; ++n) {
      if (of_bit[n] != 0.0F) norm += double{of_decoded[n] + products[n]} + double{products[n]};
    }
    start[1] = norm;
  }
  __syncthreads();
  Scale scale{start[0], start[1]};
  const auto most = static_cast<int32_t>(min(
      static_cast<int64_t>(max_flips), int64_t{kMostFlipsOfBit} * ((end + kWarpLanes - 1) / kWarpLanes * kWarpLanes)));
  float change = 0.0F;
  const float* gram_row = gram;
  Flip best{};
  for (int32_t flips = 0;; ++flips) {
    const float inverse = scale.inverse();
    best = {-1e30F, 0, 0.0F, 0.0F, 0.0F, 0.0F};
#pragma unroll
    for (int32_t k = 0; k < kOwn; ++k) {
      const int32_t n = thread + k * kThreads;
      if (n >= end) break;
      decoded[k] = decoded[k] + change * __ldg(gram_row + n);
      const float missing = inverse * wanted[k] - decoded[k];
      const float gain = step[k] * missing - half_norm[k];
      if (gain > best.gain) best = {gain, n, wanted[k], decoded[k], step[k], half_norm[k]};
    }
    const int32_t mine = best.bit;
#pragma unroll
    for (int32_t distance = kWarpLanes / 2; distance > 0; distance /= 2) {
      const float gain = __shfl_xor_sync(0xFFFFFFFFU, best.gain, distance);
      const int32_t bit = __shfl_xor_sync(0xFFFFFFFFU, best.bit, distance);
      if (gain > best.gain || (gain == best.gain && bit < best.bit)) {
        best.gain = gain;
        best.bit = bit;
      }
    }
    // Only the owner of the best bit knows its other values. Bit 0 also stands for no flip.
    if (mine == best.bit && mine % kWarpLanes == thread % kWarpLanes) candidates[flips % 2][thread / kWarpLanes] = best;
    if (best.gain == -1e30F && thread % kWarpLanes == 0) candidates[flips % 2][thread / kWarpLanes] = best;
    __syncthreads();
    best = candidates[flips % 2][0];
#pragma unroll
    for (int32_t warp = 1; warp < kWarps; ++warp) {
      const Flip& other = candidates[flips % 2][warp];
      if (other.is_better_than(best)) best = other;
    }
    if (flips >= most || !(best.gain > kLeastGain)) break;
    scale.product += double{best.step} * double{best.wanted};
    scale.norm += 2.0 * (double{best.step} * double{best.decoded} + double{best.half_norm});
    change = best.step;
    gram_row = gram + int64_t{best.bit} * bits;
    if (best.bit % kThreads == thread) {
#pragma unroll
      for (int32_t k = 0; k < kOwn; ++k) {
        if (best.bit == thread + k * kThreads) step[k] = -step[k];
      }
    }
  }
#pragma unroll
  for (int32_t k = 0; k < kOwn; ++k) {
    const int32_t n = thread + k * kThreads;
    if (n < end) of_bit[n] = step[k] < 0.0F ? 1.0F : 0.0F;
  }
  if (thread == 0) {
    work.scales[row] = static_cast<float>(stage + 1 == tables.stages ? scale.unbiased() : scale.best());
  }
}

/// Packs a page's bits and scales into bytes; one bit of the code per thread.
__global__ void __launch_bounds__(kThreads) pack_values_kernel(CommvqPages all, ValueWork work) {
  __shared__ uint16_t scales[kSlots];
  const ValueTables& tables = all.tables.values;
  const CommvqPage page = all.pages[blockIdx.x];
  const bool of_layer = tables.of_layer();
  const int32_t block = of_layer ? static_cast<int32_t>(blockIdx.x) / all.members : static_cast<int32_t>(blockIdx.x);
  if (threadIdx.x < kSlots) {
    const int32_t row = block * kSlots + static_cast<int32_t>(threadIdx.x);
    scales[threadIdx.x] =
        to_float16(static_cast<float>(fmin(work.norms[row] * double{work.scales[row]}, double{kMaxFloat16})));
  }
  __syncthreads();
  const int32_t first = of_layer ? page.head * tables.lanes : 0;
  auto* to = reinterpret_cast<std::byte*>(page.target) + all.target_values;
  for (auto lane = static_cast<int32_t>(threadIdx.x); lane < tables.lanes; lane += kThreads) {
    const float* bit = work.bit + int64_t{block} * kSlots * tables.bits + first + lane;
    uint32_t word = 0;
#pragma unroll
    for (int32_t slot = 0; slot < kSlots; ++slot) {
      if (scales[slot] != 0 && bit[int64_t{slot} * tables.bits] != 0.0F) word |= 1U << (8 * (slot % 4) + slot / 4);
    }
    *reinterpret_cast<uint32_t*>(to + 4 * lane) = word;
  }
  const SharedNumbers& numbers = tables.numbers;
  const int32_t first_slot = of_layer ? page.head * numbers.share : 0;
  const int32_t side = all.target_bytes - all.target_values;
  for (auto i = static_cast<int32_t>(threadIdx.x); numbers.offset + 2 * i < side; i += kThreads) {
    const bool has = i < numbers.share && first_slot + i < kSlots;
    *reinterpret_cast<uint16_t*>(to + numbers.offset + 2 * i) = has ? scales[first_slot + i] : uint16_t{0};
  }
}

__global__ void __launch_bounds__(kThreads) copy_sides_kernel(CommvqPages all) {
  const CommvqPage page = all.pages[blockIdx.x];
  copy_side(all.copied, page.source, page.target);
}

// Tables derived from the codes.

__global__ void __launch_bounds__(kThreads)
    gram_kernel(const uint16_t* codes, int32_t width, int32_t bits, float* gram) {
  constexpr int32_t kSide = 16;
  __shared__ float left[kSide][kSide + 1];
  __shared__ float right[kSide][kSide + 1];
  codes += int64_t{blockIdx.z} * bits * width;
  gram += int64_t{blockIdx.z} * bits * bits;
  const int32_t x = static_cast<int32_t>(threadIdx.x) % kSide;
  const int32_t y = static_cast<int32_t>(threadIdx.x) / kSide;
  const int32_t row = static_cast<int32_t>(blockIdx.y) * kSide;
  const int32_t column = static_cast<int32_t>(blockIdx.x) * kSide;
  float sum = 0.0F;
  for (int32_t at = 0; at < width; at += kSide) {
    const bool inside = at + x < width;
    left[y][x] = inside && row + y < bits ? half_at(codes, int64_t{row + y} * width + at + x) : 0.0F;
    right[y][x] = inside && column + y < bits ? half_at(codes, int64_t{column + y} * width + at + x) : 0.0F;
    __syncthreads();
#pragma unroll
    for (int32_t d = 0; d < kSide; ++d) sum = sum + left[y][d] * right[x][d];
    __syncthreads();
  }
  if (row + y < bits && column + x < bits) gram[int64_t{row + y} * bits + column + x] = sum;
}

/// Offsets of each stage's decoder: half of each row whose bit is still unknown is added, row by row.
__global__ void __launch_bounds__(kThreads) offsets_kernel(ValueTables tables, float* offsets) {
  const auto vector = static_cast<int64_t>(blockIdx.y);
  const uint16_t* codes = tables.codes + vector * tables.bits * tables.width;
  const auto c = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  if (c >= tables.width) return;
  float* of_vector = offsets + vector * tables.stages * tables.width + c;
  const float own = tables.offset[vector * tables.width + c];
  for (int32_t stage = 0; stage < tables.stages; ++stage) {
    float offset = own;
    for (int32_t n = tables.stage_end(stage); n < tables.bits; ++n) {
      offset += half_at(codes, int64_t{n} * tables.width + c) / 2.0F;
    }
    of_vector[int64_t{stage} * tables.width] = offset;
  }
}

/// One row of codes per thread, and one thread for the offset's squared length. Products are float, sums double.
__global__ void __launch_bounds__(kThreads)
    offset_products_kernel(ValueTables tables, const float* offsets, float* offset_products, double* offset_norms) {
  const auto vector_stage = static_cast<int64_t>(blockIdx.y);
  const int64_t vector = vector_stage / tables.stages;
  const auto n = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  if (n > tables.bits) return;
  const float* offset = offsets + vector_stage * tables.width;
  const uint16_t* row = tables.codes + (vector * tables.bits + n) * tables.width;
  double sum = 0.0;
  for (int32_t c = 0; c < tables.width; ++c) {
    sum += double{offset[c] * (n < tables.bits ? half_at(row, c) : offset[c])};
  }
  if (n < tables.bits) {
    offset_products[vector_stage * tables.bits + n] = static_cast<float>(sum);
  } else {
    offset_norms[vector_stage] = sum;
  }
}

template <int kOwn>
void flip_some(const CommvqPages& pages, const ValueWork& work, int32_t stage, int32_t flips, cudaStream_t stream) {
  const auto rows = static_cast<uint32_t>(Rows{pages}.count());
  flip_kernel<kOwn><<<rows, kThreads, 0, stream>>>(pages, work, stage, flips);
}

void flip_bits(const CommvqPages& pages, const ValueWork& work, int32_t stage, int32_t flips, cudaStream_t stream) {
  const int32_t own = (pages.tables.values.stage_end(stage) + kThreads - 1) / kThreads;
  if (own <= 1) return flip_some<1>(pages, work, stage, flips, stream);
  if (own <= 2) return flip_some<2>(pages, work, stage, flips, stream);
  if (own <= 4) return flip_some<4>(pages, work, stage, flips, stream);
  if (own <= 8) return flip_some<8>(pages, work, stage, flips, stream);
  if (own <= 16) return flip_some<16>(pages, work, stage, flips, stream);
  flip_some<kMostCodeBits / kThreads>(pages, work, stage, flips, stream);
}

/// Proposes the bits with which a stage begins.
void propose_bits(const CommvqPages& pages, const ValueWork& work, int32_t stage, cudaStream_t stream) {
  const ValueTables& tables = pages.tables.values;
  const int32_t width = tables.width;
  const int32_t first = stage * width;
  const int32_t end = tables.stage_end(stage);
  const float* rows = stage == 0 ? work.unit : work.residual;
  const NetworkTables& network = tables.network;
  if (network.hidden == 0) {
    const Matrix<uint16_t> proposal{tables.proposal + int64_t{first} * width, int64_t{tables.bits} * width, width, 1};
    const StoreBit store{work.bit + first, tables.bits, tables.proposal_bias + first};
    return multiply(pages, proposal, end - first, width, rows, width, store, stream);
  }
  standardize_kernel<<<static_cast<uint32_t>(Rows{pages}.blocks()), kWarpLanes, 0, stream>>>(pages, rows, work.decoded);
  const Matrix<uint16_t> one{network.first, int64_t{network.hidden} * width, width, 1};
  const StoreUnit units{{work.hidden, network.hidden, network.first_bias}};
  multiply(pages, one, network.hidden, width, work.decoded, width, units, stream);
  const Matrix<uint16_t> two{network.second, int64_t{2} * tables.bits * network.hidden, network.hidden, 1};
  const StoreBiased outputs{work.outputs, 2 * tables.bits, network.second_bias};
  multiply(pages, two, 2 * tables.bits, network.hidden, work.hidden, network.hidden, outputs, stream);
  choose_kernel<<<static_cast<uint32_t>(Rows{pages}.count()), kThreads, 0, stream>>>(work.outputs, tables.bits,
                                                                                     work.bit);
}

}  // namespace

cudaError_t launch_value_tables(const ValueTables& tables, int32_t vectors, float* gram, float* offsets,
                                float* offset_products, double* offset_norms, cudaStream_t stream) {
  constexpr int32_t kSide = 16;
  const auto ceiling = [](int32_t n, int32_t by) { return static_cast<uint32_t>((n + by - 1) / by); };
  const uint32_t side = ceiling(tables.bits, kSide);
  gram_kernel<<<dim3(side, side, static_cast<uint32_t>(vectors)), kThreads, 0, stream>>>(tables.codes, tables.width,
                                                                                         tables.bits, gram);
  offsets_kernel<<<dim3(ceiling(tables.width, kThreads), static_cast<uint32_t>(vectors)), kThreads, 0, stream>>>(
      tables, offsets);
  const dim3 grid(ceiling(tables.bits + 1, kThreads), static_cast<uint32_t>(vectors * tables.stages));
  offset_products_kernel<<<grid, kThreads, 0, stream>>>(tables, offsets, offset_products, offset_norms);
  return cudaGetLastError();
}

cudaError_t copy_sides(const CommvqPages& pages, cudaStream_t stream) {
  copy_sides_kernel<<<static_cast<uint32_t>(pages.count()), kThreads, 0, stream>>>(pages);
  return cudaGetLastError();
}

cudaError_t encode_values(const CommvqPages& pages, const ValueWork& work, int32_t flips, cudaStream_t stream) {
  const ValueTables& tables = pages.tables.values;
  const Rows rows{pages};
  const int32_t width = tables.width;
  const int32_t bits = tables.bits;
  const int64_t of_codes = int64_t{bits} * width;
  const auto count = static_cast<uint32_t>(rows.count());
  const auto blocks = static_cast<uint32_t>(rows.blocks());
  read_values_kernel<<<static_cast<uint32_t>(pages.count()), kThreads, 0, stream>>>(pages, work.unit);
  lengths_kernel<<<blocks, kWarpLanes, 0, stream>>>(work.unit, width, work.norms);
  divide_kernel<<<count, kThreads, 0, stream>>>(work.unit, width, work.norms);
  for (int32_t stage = 0; stage < tables.stages; ++stage) {
    const int32_t first = stage * width;
    const int32_t end = tables.stage_end(stage);
    if (stage > 0) {
      const Matrix<uint16_t> columns{tables.codes, of_codes, 1, width};
      multiply(pages, columns, width, first, work.bit, bits, Store{work.residual, width}, stream);
      subtract_kernel<<<count, kThreads, 0, stream>>>(pages, work, stage - 1);
      lengths_kernel<<<blocks, kWarpLanes, 0, stream>>>(work.residual, width, work.residual_norms);
      divide_kernel<<<count, kThreads, 0, stream>>>(work.residual, width, work.residual_norms);
    }
    propose_bits(pages, work, stage, stream);
    const Matrix<uint16_t> codes{tables.codes + int64_t{first} * width, of_codes, width, 1};
    multiply(pages, codes, end - first, width, work.unit, width, Store{work.wanted + first, bits}, stream);
    const Matrix<float> gram{tables.gram, int64_t{bits} * bits, bits, 1};
    multiply(pages, gram, end, end, work.bit, bits, Store{work.decoded, bits}, stream);
    flip_bits(pages, work, stage, flips, stream);
  }
  pack_values_kernel<<<static_cast<uint32_t>(pages.count()), kThreads, 0, stream>>>(pages, work);
  return cudaGetLastError();
}

}  // namespace kvq::cuda
