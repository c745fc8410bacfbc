#include "kernels/lane_codes.cuh"
#include "kernels/linear.h"
#include "kernels/linear_inputs.cuh"
#include "kernels/warp.cuh"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace kvq::cuda {
namespace {

constexpr int32_t kThreads = 512;
constexpr int32_t kWarps = kThreads / kWarpLanes;
constexpr int32_t kTileInputs = 8;  // rows of inputs that a product takes
/// Inputs that a block makes ready itself.
constexpr int32_t kMostOwnInputs = 16384;
/// Bytes of codes that a warp has on their way, at least.
constexpr int32_t kBytesAhead = 2048;

/// A block multiplies some panels, 16 outputs each, by up to 8 · kTiles rows of inputs. Its warps share the columns;
/// each keeps its sums of every panel in shared memory, where they meet.
struct LinearPlan {
  int32_t panels;  // that are done at once
  TableSize table_size;
  int32_t table_bytes;
  int32_t sums_bytes;  // or rotated inputs, before
  int32_t input_bytes;
  float norm;           // of the rotation
  uint32_t factor;      // of hashes
  uint32_t addends[2];  // of those of segments, times the factor

  int32_t shared_bytes() const { return table_bytes + sums_bytes + input_bytes; }
};

struct LinearCall {
  InputRows rows;
  LinearInputs inputs;  // ready, unless `own`
  LinearOutputs outputs;
  LinearPlan plan;
  bool own;  // whether each block makes the inputs ready
};

template <int32_t kWords>
struct Codes {
  uint32_t words[kWords];
};

/// The columns of a segment that a warp multiplies, for one panel after the other.
template <typename Code>
struct CodeCursor {
  const uint8_t* first;  // codes of the lane in the first block of the first panel
  int64_t panel_bytes;
  int32_t n_panels;
  int32_t panel = 0;
  int32_t round = 0;

  __device__ __forceinline__ void load(Codes<Code::kWords>& to) const {
    constexpr int32_t kTogether = words_together(Code::kCode);
    const uint8_t* from =
        first + panel * panel_bytes + round * (kWarps * static_cast<int64_t>(block_bytes(Code::kCode)));
#pragma unroll
    for (int32_t i = 0; i < Code::kWords; i += kTogether) {
      const uint8_t* at = from + i * static_cast<int64_t>(kWarpLanes * sizeof(uint32_t));
      if constexpr (kTogether == 4) {
        const uint4 four = __ldcs(reinterpret_cast<const uint4*>(at));
        to.words[i] = four.x, to.words[i + 1] = four.y, to.words[i + 2] = four.z, to.words[i + 3] = four.w;
      } else if constexpr (kTogether == 2) {
        const uint2 two = __ldcs(reinterpret_cast<const uint2*>(at));
        to.words[i] = two.x, to.words[i + 1] = two.y;
      } else {
        to.words[i] = __ldcs(reinterpret_cast<const uint32_t*>(at));
      }
    }
  }
  __device__ __forceinline__ void next() {
    if (++panel < n_panels) return;
    panel = 0;
    ++round;
  }
};

/// Inputs of a block of columns that a lane multiplies by.
template <int32_t kTiles>
struct LaneInputs {
  uint4 of[kTiles][kPieces];

  /// \param rows  the first of them.  \param columns  that are left.
  __device__ __forceinline__ void load(const uint16_t* rows, int32_t n_rows, int32_t in, int32_t columns,
                                       int32_t lane) {
    const int32_t g = lane / 4;
    const int32_t t = lane % 4;
#pragma unroll
    for (int32_t n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int32_t piece = 0; piece < kPieces; ++piece) {
        const int32_t row = kTileInputs * n + g;
        of[n][piece] = make_uint4(0, 0, 0, 0);
        if (row < n_rows && piece * kPieceColumns < columns) {
          of[n][piece] = *reinterpret_cast<const uint4*>(rows + int64_t{row} * in + piece * kPieceColumns + 8 * t);
        }
      }
    }
  }
};

template <typename Code, int32_t kTiles>
__device__ __forceinline__ void add_segment(const LinearMatrix& matrix, int32_t number, const LinearPlan& plan,
                                            const uint16_t* inputs, int32_t n_rows, int32_t first_panel,
                                            int32_t n_panels, bool fills, std::byte* table, float4* sums) {
  const LinearSegment& segment = matrix.segments[number];
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % kWarpLanes;
  const int32_t warp = static_cast<int32_t>(threadIdx.x) / kWarpLanes;
  constexpr auto kBlockBytes = static_cast<int32_t>(block_bytes(Code::kCode));
  constexpr int32_t kAhead = kBytesAhead > kBlockBytes ? (kBytesAhead + kBlockBytes - 1) / kBlockBytes : 1;
  const int32_t total = (max(blocks_of(segment.columns) - warp, 0) + kWarps - 1) / kWarps * n_panels;

  CodeCursor<Code> ahead{.first = matrix.codes + first_panel * matrix.panel_bytes + segment.begin + warp * kBlockBytes +
                                  lane * static_cast<int32_t>(words_together(Code::kCode) * sizeof(uint32_t)),
                         .panel_bytes = matrix.panel_bytes,
                         .n_panels = n_panels};
  Codes<Code::kWords> codes[kAhead];
#pragma unroll
  for (int32_t i = 0; i < kAhead; ++i) {
    if (i < total) ahead.load(codes[i]);
    ahead.next();
  }
  if (fills) {
    Code::template fill<kThreads>(segment, plan.table_size, table);
    __syncthreads();
  }
  const CodeFinder finder = Code::finder(segment, plan.table_size, plan.factor, plan.addends[number], table, lane);
  LaneInputs<kTiles> x;
  int32_t panel = 0;
  int32_t column = warp * kBlockColumns;
  for (int32_t first = 0; first < total; first += kAhead) {
#pragma unroll
    for (int32_t i = 0; i < kAhead; ++i) {
      if (first + i >= total) break;
      if (panel == 0) {
        x.load(inputs + segment.first_column + column, n_rows, matrix.in, segment.columns - column, lane);
      }
      const Codes<Code::kWords> now = codes[i];
      if (first + i + kAhead < total) ahead.load(codes[i]);
      ahead.next();
      LanePairs pairs[kPieces];
      Code::decode(now.words, lane, finder, pairs);
      float sum[kTiles][4] = {};
#pragma unroll
      for (int32_t piece = 0; piece < kPieces; ++piece) {
        const auto& a = pairs[piece].of;
#pragma unroll
        for (int32_t n = 0; n < kTiles; ++n) {
          const uint4& b = x.of[n][piece];
          mma(sum[n], a[0][0], a[1][0], a[0][1], a[1][1], b.x, b.y);
          mma(sum[n], a[0][2], a[1][2], a[0][3], a[1][3], b.z, b.w);
        }
      }
#pragma unroll
      for (int32_t n = 0; n < kTiles; ++n) {
        float4& to = sums[((panel * kTiles + n) * kWarps + warp) * kWarpLanes + lane];
        float4 all = to;
        all.x += segment.unit * sum[n][0];
        all.y += segment.unit * sum[n][1];
        all.z += segment.unit * sum[n][2];
        all.w += segment.unit * sum[n][3];
        to = all;
      }
      if (++panel == n_panels) {
        panel = 0;
        column += kWarps * kBlockColumns;
      }
    }
  }
}

/// All inputs become halves in shared memory.
__device__ __forceinline__ void make_own_inputs(const LinearCall& call, float* numbers, uint16_t* halves,
                                                float* scales) {
  __shared__ uint32_t largest[kTileInputs];
  const InputRows& rows = call.rows;
  const int32_t n = rows.rows * rows.in;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  for (int32_t i = thread; i < n; i += kThreads) numbers[i] = signed_input(rows, i / rows.in, i % rows.in);
  if (thread < kTileInputs) largest[thread] = 0;
  __syncthreads();
  const Transforms transforms(rows.in);
  const int32_t rest = rows.in - transforms.whole;
  if (rows.signs != nullptr) {
    if (rest == 0) {
      transform<kThreads>(numbers, n, transforms.width);
    } else {
      for (int32_t row = 0; row < rows.rows; ++row) {
        transform<kThreads>(numbers + row * rows.in, transforms.whole, transforms.width);
        transform<kThreads>(numbers + row * rows.in + transforms.whole, rest, rest);
      }
    }
  }
  const auto at = [&](int32_t row, int32_t i) {
    const float x = numbers[row * rows.in + i];
    if (rows.signs == nullptr) return x;
    return x * (i < transforms.whole ? call.plan.norm : rsqrtf(static_cast<float>(rest)));
  };
  for (int32_t row = 0; row < rows.rows; ++row) {
    uint32_t bits = 0;
    for (int32_t i = thread; i < rows.in; i += kThreads) bits = max(bits, __float_as_uint(at(row, i)) & 0x7FFFFFFFU);
    bits = __reduce_max_sync(0xFFFFFFFFU, bits);
    if (thread % kWarpLanes == 0) atomicMax(&largest[row], bits);
  }
  __syncthreads();
  for (int32_t row = 0; row < rows.rows; ++row) {
    const HalfScale scale(largest[row]);
    for (int32_t i = thread; i < rows.in; i += kThreads) halves[row * rows.in + half_place(i)] = scale(at(row, i));
    if (thread == 0) scales[row] = scale.up;
  }
  __syncthreads();
}

template <Family kFamily, int32_t kQuarters, int32_t kTiles>
__global__ void __launch_bounds__(kThreads, 1)
    linear_kernel(const __grid_constant__ LinearMatrix matrix, const __grid_constant__ LinearCall call) {
  extern __shared__ __align__(128) std::byte memory[];
  __shared__ float own_scales[kTileInputs];
  const LinearPlan& plan = call.plan;
  std::byte* table = memory;
  auto* sums = reinterpret_cast<float4*>(memory + plan.table_bytes);
  const int32_t first_row = static_cast<int32_t>(blockIdx.y) * kTileInputs * kTiles;
  const int32_t n_rows = min(call.rows.rows - first_row, kTileInputs * kTiles);
  const uint16_t* inputs = call.inputs.halves + int64_t{first_row} * matrix.in;
  const float* scales = call.inputs.scales + first_row;
  if (call.own) {
    auto* halves = reinterpret_cast<uint16_t*>(memory + plan.table_bytes + plan.sums_bytes);
    make_own_inputs(call, reinterpret_cast<float*>(sums), halves, own_scales);
    inputs = halves;
    scales = own_scales;
  }
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t panels = weights::panels_of(matrix.out);
  const auto blocks = static_cast<int32_t>(gridDim.x);
  const auto block = static_cast<int32_t>(blockIdx.x);
  const auto begin_of = [&](int32_t i) { return static_cast<int32_t>(int64_t{panels} * i / blocks); };
  const int32_t end = begin_of(block + 1);
  for (int32_t first = begin_of(block); first < end; first += plan.panels) {
    const int32_t n = min(end - first, plan.panels);
    const bool begins = first == begin_of(block);
    for (int32_t i = thread; i < n * kTiles * kThreads; i += kThreads) sums[i] = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
    if constexpr (weights::Scheme{kFamily, kQuarters}.has_halves()) {
      const bool two_tables = matrix.segments[0].levels != matrix.segments[1].levels;
      add_segment<LaneCode<kFamily, kQuarters - 1>, kTiles>(matrix, 0, plan, inputs, n_rows, first, n,
                                                            begins || two_tables, table, sums);
      if (two_tables) __syncthreads();
      add_segment<LaneCode<kFamily, kQuarters + 1>, kTiles>(matrix, 1, plan, inputs, n_rows, first, n, two_tables,
                                                            table, sums);
    } else {
      add_segment<LaneCode<kFamily, kQuarters>, kTiles>(matrix, 0, plan, inputs, n_rows, first, n, begins, table, sums);
    }
    __syncthreads();
    constexpr int32_t kPanelSums = kTileInputs * kTiles * weights::kTileRows;
    for (int32_t i = thread; i < n * kPanelSums; i += kThreads) {
      const int32_t at = i % (4 * kWarpLanes);
      const int32_t tile = i / (4 * kWarpLanes);  // of inputs, of a panel
      const int32_t lane = at / 4;
      const int32_t out = (first + tile / kTiles) * weights::kTileRows + 2 * (lane / 4) + at % 4 / 2;
      const int32_t row = tile % kTiles * kTileInputs + 2 * (lane % 4) + at % 2;
      if (out >= matrix.out || row >= n_rows) continue;
      const float* of_warps = reinterpret_cast<const float*>(sums) + tile * (kWarps * 4 * kWarpLanes) + at;
      float sum = 0.0F;
#pragma unroll
      for (int32_t warp = 0; warp < kWarps; ++warp) sum += of_warps[warp * 4 * kWarpLanes];
      sum *= scales[row];
      if (matrix.row_scales != nullptr) {
        sum *= matrix.scale * __half2float(__ushort_as_half(__ldg(matrix.row_scales + out)));
      }
      if (matrix.bias != nullptr) sum += __ldg(matrix.bias + out);
      write_float(call.outputs.y, call.outputs.dtype, int64_t{first_row + row} * matrix.out + out, sum);
    }
    __syncthreads();
  }
}

/// Of one kernel.
struct Kernel {
  void (*launch)(const LinearMatrix&, const LinearCall&, dim3 grid, cudaStream_t);
  cudaError_t (*prepare)(int32_t shared_bytes);
  int32_t (*table_bytes)(const LinearMatrix&, TableSize);
};

template <Family kFamily, int32_t kQuarters, int32_t kTiles>
void launch(const LinearMatrix& matrix, const LinearCall& call, dim3 grid, cudaStream_t stream) {
  linear_kernel<kFamily, kQuarters, kTiles>
      <<<grid, kThreads, static_cast<size_t>(call.plan.shared_bytes()), stream>>>(matrix, call);
}

template <Family kFamily, int32_t kQuarters, int32_t kTiles>
cudaError_t prepare(int32_t shared_bytes) {
  return cudaFuncSetAttribute(linear_kernel<kFamily, kQuarters, kTiles>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              shared_bytes);
}

template <Family kFamily, int32_t kQuarters>
int32_t table_bytes(const LinearMatrix& matrix, TableSize size) {
  if constexpr (weights::Scheme{kFamily, kQuarters}.has_halves()) {
    return std::max(LaneCode<kFamily, kQuarters - 1>::table_bytes(matrix.segments[0].index_bits, size),
                    LaneCode<kFamily, kQuarters + 1>::table_bytes(matrix.segments[1].index_bits, size));
  } else {
    return LaneCode<kFamily, kQuarters>::table_bytes(matrix.segments[0].index_bits, size);
  }
}

/// Kernels of every scheme, in the order of weights::index_of.
template <int32_t kTiles, size_t... i>
constexpr std::array<Kernel, sizeof...(i)> kernels(std::index_sequence<i...> /*each*/) {
  return {Kernel{launch<weights::kSchemes[i].family, weights::kSchemes[i].quarters, kTiles>,
                 prepare<weights::kSchemes[i].family, weights::kSchemes[i].quarters, kTiles>,
                 table_bytes<weights::kSchemes[i].family, weights::kSchemes[i].quarters>}...};
}
constexpr auto kFew = kernels<1>(std::make_index_sequence<weights::kSchemeCount>());
constexpr auto kMany = kernels<2>(std::make_index_sequence<weights::kSchemeCount>());

constexpr int32_t kStaticBytes = 256;  // of shared memory, at most

LinearPlan plan_linear(const Kernel& kernel, const LinearMatrix& matrix, const InputRows& rows, int32_t n_tiles,
                       int32_t panels, const LinearDevice& device) {
  const auto all = device.shared_limit - kStaticBytes;
  const bool own = makes_inputs_ready(rows.rows, rows.in);
  const int32_t inputs = own ? rows.rows * rows.in : 0;
  const Transforms transforms(rows.in);
  LinearPlan plan{.panels = 0,
                  .table_size = TableSize::kLarge,
                  .table_bytes = 0,
                  .sums_bytes = 0,
                  .input_bytes = inputs * static_cast<int32_t>(sizeof(uint16_t)),
                  .norm = static_cast<float>(1.0 / std::sqrt(static_cast<double>(transforms.width))),
                  .factor = 1,
                  .addends = {}};
  const int32_t panel_bytes = n_tiles * kThreads * static_cast<int32_t>(sizeof(float4));
  const int32_t least = std::max(inputs * static_cast<int32_t>(sizeof(float)), panel_bytes);
  for (const TableSize size : {TableSize::kLarge, TableSize::kSmall}) {
    plan.table_size = size;
    plan.table_bytes = kernel.table_bytes(matrix, size);
    if (plan.table_bytes + plan.input_bytes + least <= all) break;
  }
  // A table of twice the bytes has entries twice as far apart.
  if (matrix.scheme.family == Family::kTcq && plan.table_size == TableSize::kLarge) plan.factor = 2;
  for (int32_t i = 0; i < 2; ++i) plan.addends[i] = plan.factor * matrix.segments[i].addend;
  const int32_t most = std::max((all - plan.table_bytes - plan.input_bytes) / panel_bytes, 1);
  const int32_t passes = (panels + most - 1) / most;
  plan.panels = (panels + passes - 1) / passes;
  plan.sums_bytes = std::max(least, plan.panels * panel_bytes);
  return plan;
}

}  // namespace

bool makes_inputs_ready(int32_t rows, int32_t in) {
  return rows <= kTileInputs && int64_t{rows} * in <= kMostOwnInputs;
}

cudaError_t prepare_linear(const weights::Scheme& scheme, const LinearDevice& device) {
  const auto index = static_cast<size_t>(weights::index_of(scheme));
  for (const Kernel& kernel : {kFew[index], kMany[index]}) {
    const cudaError_t status = kernel.prepare(device.shared_limit - kStaticBytes);
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

cudaError_t launch_linear(const LinearMatrix& matrix, const InputRows& rows, const LinearInputs& inputs,
                          const LinearOutputs& outputs, const LinearDevice& device, cudaStream_t stream) {
  const auto index = static_cast<size_t>(weights::index_of(matrix.scheme));
  const int32_t n_tiles = rows.rows <= kTileInputs ? 1 : 2;
  const Kernel& kernel = (n_tiles == 1 ? kFew : kMany)[index];
  const int32_t panels = weights::panels_of(matrix.out);
  const int32_t blocks = std::min(panels, device.multiprocessors);
  const LinearCall call{.rows = rows,
                        .inputs = inputs,
                        .outputs = outputs,
                        .plan = plan_linear(kernel, matrix, rows, n_tiles, (panels + blocks - 1) / blocks, device),
                        .own = makes_inputs_ready(rows.rows, rows.in)};
  const int32_t rows_at_once = n_tiles * kTileInputs;
  kernel.launch(
      matrix, call,
      dim3(static_cast<uint32_t>(blocks), static_cast<uint32_t>((rows.rows + rows_at_once - 1) / rows_at_once)),
      stream);
  return cudaGetLastError();
}

}  // namespace kvq::cuda
