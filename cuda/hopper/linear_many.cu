#include "kernels/bulk_copies.cuh"
#include "kernels/lane_codes.cuh"
#include "kernels/linear.h"
#include "kernels/overlap.cuh"
#include "kernels/tensor.cuh"
#include "kernels/warp.cuh"
#include "kernels/warpgroup.cuh"

#include <algorithm>
#include <array>
#include <utility>

namespace kvq::cuda {
namespace {

constexpr int32_t kGroups = 2;  // warpgroups that multiply; one more copies
constexpr int32_t kGroupThreads = 128;
constexpr int32_t kThreads = (kGroups + 1) * kGroupThreads;
constexpr int32_t kMultiplyingThreads = kGroups * kGroupThreads;
constexpr int32_t kPanels = kMultiplyingThreads / kWarpLanes;  // of a block, one a warp
constexpr int32_t kStages = 4;
constexpr int32_t kTableBarrier = 1;

constexpr int32_t plane_bytes(int32_t tile_rows) {
  return tile_rows * kPlaneInputs * static_cast<int32_t>(sizeof(uint16_t));
}

/// Shared memory of a block, behind tables.
template <int32_t kRows>
struct ManyShared {
  alignas(1024) std::byte planes[kStages][plane_bytes(kRows)];
  uint64_t arrived[kStages];
  uint64_t free[kStages];
};

struct ManyCall {
  InputRows rows;
  LinearInputs inputs;
  LinearOutputs outputs;
  int32_t planes_begin;  // in shared memory, in bytes
};

/// One thread: planes of the block's rows, as stages become free.
template <int32_t kRows>
__device__ __forceinline__ void copy_planes(const LinearMatrix& matrix, const LinearInputs& inputs,
                                            ManyShared<kRows>& shared) {
  const int32_t planes = matrix.in / kPlaneInputs;
  const auto* from =
      reinterpret_cast<const std::byte*>(inputs.halves) + int64_t{blockIdx.y} * planes * plane_bytes(kRows);
  StageTurn<kStages> turn;
#pragma unroll 1
  for (int32_t i = 0; i < planes; ++i) {
    wait_copy(shared_address(&shared.free[turn.stage]), turn.parity ^ 1U);
    expect_bytes(shared.arrived[turn.stage], plane_bytes(kRows));
    copy_bytes(shared.planes[turn.stage], from, plane_bytes(kRows), shared.arrived[turn.stage]);
    from += plane_bytes(kRows);
    turn.advance();
  }
}

/// A warp's panel times the block's rows, with those of the other warps of its warpgroup.
template <int32_t kRows>
class PanelProducts {
 public:
  explicit __device__ __forceinline__ PanelProducts(ManyShared<kRows>& shared) : shared_(shared) {}

  __device__ __forceinline__ const float (&sums() const)[kRows / 2] { return sums_; }

  /// \param scale  what sums of earlier segments are multiplied by.
  template <typename Code>
  __device__ __forceinline__ void add(const LinearMatrix& matrix, const LinearSegment& segment, int32_t panel,
                                      const std::byte* table, float scale) {
    const int32_t lane = static_cast<int32_t>(threadIdx.x) % kWarpLanes;
    const CodeFinder finder = Code::finder(segment, table, lane);
    const uint8_t* from = matrix.codes + panel * matrix.panel_bytes + segment.begin;
    if (scale != 1.0F) {
      wait_products<0>();
      hold(sums_);
#pragma unroll
      for (float& sum : sums_) sum *= scale;
    }
    const int32_t blocks = blocks_of(segment.columns);
    uint32_t next[Code::kWords];
    load_words<Code>(from, next);
#pragma unroll 1
    for (int32_t i = 0; i < blocks; ++i) {
      uint32_t words[Code::kWords];
#pragma unroll
      for (int32_t k = 0; k < Code::kWords; ++k) words[k] = next[k];
      from += block_bytes(Code::kCode);
      if (i + 1 < blocks) load_words<Code>(from, next);
#pragma unroll
      for (int32_t piece = 0; piece < kPieces; piece += 2) {
        typename Code::Halves halves[2];
        Code::decode(words, piece, lane, finder, halves);
        uint32_t operands[4][4];
        join<Code>(halves, operands);
        multiply(operands);
      }
    }
  }
  __device__ __forceinline__ void finish() {
    wait_products<0>();
    hold(sums_);
  }

 private:
  /// Of two pieces, as the first operands of four products.
  template <typename Code>
  static __device__ __forceinline__ void join(const typename Code::Halves (&halves)[2], uint32_t (&operands)[4][4]) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
#pragma unroll
      for (int32_t k = 0; k < 4; ++k) {
        const auto& of = halves[i / 2].of;
        const int32_t pair = i % 2 * 2 + k / 2;
        operands[i][k] = of[0][k % 2][pair];
        if constexpr (Code::kParts == 2) operands[i][k] |= of[1][k % 2][pair];
      }
    }
  }
  __device__ __forceinline__ void multiply(const uint32_t (&operands)[4][4]) {
    wait_copy(shared_address(&shared_.arrived[turn_.stage]), turn_.parity);
    const uint64_t plane = describe_plane<128>(shared_address(shared_.planes[turn_.stage]));
    begin_products();
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) multiply_registers(sums_, operands[i], plane + static_cast<uint64_t>(2 * i));
    commit_products();
    wait_products<1>();
    if (last_stage_ >= 0 && threadIdx.x % kWarpLanes == 0) arrive(shared_.free[last_stage_]);
    last_stage_ = turn_.stage;
    turn_.advance();
  }

  ManyShared<kRows>& shared_;
  StageTurn<kStages> turn_;
  int32_t last_stage_ = -1;
  float sums_[kRows / 2] = {};
};

/// A warp's outputs: neighbours 2g and 2g + 1 of its panel for rows 8j + 2t and 8j + 2t + 1.
template <int32_t kRows>
__device__ __forceinline__ void write_panel(const LinearMatrix& matrix, const ManyCall& call, int32_t panel, float unit,
                                            const float (&sums)[kRows / 2]) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % kWarpLanes;
  const int32_t out = panel * weights::kTileRows + lane / 4 * 2;
  float factors[2];
  float biases[2] = {};
#pragma unroll
  for (int32_t h = 0; h < 2; ++h) {
    if (out + h >= matrix.out) continue;
    factors[h] = unit;
    if (matrix.row_scales != nullptr) {
      factors[h] *= matrix.scale * __half2float(__ushort_as_half(__ldg(matrix.row_scales + out + h)));
    }
    if (matrix.bias != nullptr) biases[h] = __ldg(matrix.bias + out + h);
  }
#pragma unroll
  for (int32_t j = 0; j < kRows / 8; ++j) {
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
      const int32_t row = static_cast<int32_t>(blockIdx.y) * kRows + 8 * j + lane % 4 * 2 + i;
      if (row >= call.rows.rows) continue;
      const float scale = call.inputs.scales[row];
#pragma unroll
      for (int32_t h = 0; h < 2; ++h) {
        if (out + h >= matrix.out) continue;
        write_float(call.outputs.y, call.outputs.dtype, int64_t{row} * matrix.out + out + h,
                    sums[4 * j + 2 * h + i] * scale * factors[h] + biases[h]);
      }
    }
  }
}

template <Family kFamily, int32_t kQuarters, int32_t kRows>
__global__ void __launch_bounds__(kThreads, 1)
    many_kernel(const __grid_constant__ LinearMatrix matrix, const __grid_constant__ ManyCall call) {
  extern __shared__ __align__(1024) std::byte memory[];
  auto& shared = *reinterpret_cast<ManyShared<kRows>*>(memory + call.planes_begin);
  constexpr bool kHalves = weights::Scheme{kFamily, kQuarters}.has_halves();
  using First = LaneCode<kFamily, kHalves ? kQuarters - 1 : kQuarters>;
  using Second = LaneCode<kFamily, kHalves ? kQuarters + 1 : kQuarters>;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t group = __shfl_sync(0xFFFFFFFFU, thread / kGroupThreads, 0);
  if (thread == 0) {
    for (int32_t i = 0; i < kStages; ++i) {
      make_barrier(shared.arrived[i], 1);
      make_barrier(shared.free[i], kPanels);
    }
    order_before_copies();
  }
  First::template fill<kThreads>(matrix.segments[0], memory);
  __syncthreads();
  wait_for_earlier_kernels();
  let_next_kernel_begin();
  if (group == kGroups) {
    give_registers<24>();
    if (thread == kMultiplyingThreads) copy_planes(matrix, call.inputs, shared);
    return;
  }
  take_registers<240>();
  const int32_t n_panels = weights::panels_of(matrix.out);
  const int32_t panel = static_cast<int32_t>(blockIdx.x) * kPanels + thread / kWarpLanes;
  const int32_t there = min(panel, n_panels - 1);  // a warp without a panel multiplies, too
  PanelProducts<kRows> products(shared);
  products.template add<First>(matrix, matrix.segments[0], there, memory, 1.0F);
  float unit = matrix.segments[0].unit;
  if constexpr (kHalves) {
    if (matrix.segments[0].levels != matrix.segments[1].levels) {
      wait_at(kTableBarrier, kMultiplyingThreads);
      Second::template fill<kMultiplyingThreads>(matrix.segments[1], memory);
      wait_at(kTableBarrier, kMultiplyingThreads);
    }
    products.template add<Second>(matrix, matrix.segments[1], there, memory, unit / matrix.segments[1].unit);
    unit = matrix.segments[1].unit;
  }
  products.finish();
  if (panel < n_panels) write_panel<kRows>(matrix, call, panel, unit, products.sums());
}

/// Of one kernel.
struct Kernel {
  cudaError_t (*launch)(const LinearMatrix&, const ManyCall&, dim3 grid, int32_t bytes, cudaStream_t);
  cudaError_t (*prepare)(int32_t shared_bytes);
  int32_t (*table_bytes)(const LinearMatrix&);
};

template <Family kFamily, int32_t kQuarters, int32_t kRows>
cudaError_t launch(const LinearMatrix& matrix, const ManyCall& call, dim3 grid, int32_t bytes, cudaStream_t stream) {
  return launch_early(true, many_kernel<kFamily, kQuarters, kRows>, grid, kThreads, static_cast<size_t>(bytes), stream,
                      matrix, call);
}
template <Family kFamily, int32_t kQuarters, int32_t kRows>
cudaError_t prepare(int32_t shared_bytes) {
  return share_all_memory(many_kernel<kFamily, kQuarters, kRows>, shared_bytes);
}

/// Kernels of every scheme, in the order of weights::index_of.
template <int32_t kRows, size_t... i>
constexpr std::array<Kernel, sizeof...(i)> kernels(std::index_sequence<i...> /*each*/) {
  return {Kernel{launch<weights::kSchemes[i].family, weights::kSchemes[i].quarters, kRows>,
                 prepare<weights::kSchemes[i].family, weights::kSchemes[i].quarters, kRows>,
                 linear_table_bytes<weights::kSchemes[i].family, weights::kSchemes[i].quarters>}...};
}
constexpr int32_t kFewTileRows = 64;
constexpr int32_t kManyTileRows = 256;
constexpr auto kFew = kernels<kFewTileRows>(std::make_index_sequence<weights::kSchemeCount>());
constexpr auto kMany = kernels<kManyTileRows>(std::make_index_sequence<weights::kSchemeCount>());

/// Cycles that a block takes for a block of columns on an H100: products, or codes where rows are few.
constexpr int32_t step_cycles(Family family, int32_t tile_rows) {
  const bool slow = family == Family::kTcx;
  if (tile_rows == kFewTileRows) return slow ? 1900 : 1300;
  return slow ? 3300 : 2900;
}

constexpr int32_t up_to(int32_t n, int32_t each) { return (n + each - 1) / each; }

}  // namespace

int32_t tile_rows_for(const LinearMatrix& matrix, int32_t rows, const LinearDevice& device) {
  if (!device.has_warpgroups || rows <= kMostFewRows) return 0;
  // Blocks of columns are whole.
  if (matrix.in % (matrix.scheme.has_halves() ? 2 * kBlockColumns : kBlockColumns) != 0) return 0;
  const auto cycles = [&](int32_t tile_rows) {
    const int32_t blocks = up_to(weights::panels_of(matrix.out), kPanels) * up_to(rows, tile_rows);
    return int64_t{up_to(blocks, device.multiprocessors)} * step_cycles(matrix.scheme.family, tile_rows);
  };
  return cycles(kManyTileRows) < cycles(kFewTileRows) ? kManyTileRows : kFewTileRows;
}

cudaError_t prepare_linear_many(const weights::Scheme& scheme, const LinearDevice& device) {
  if (!device.has_warpgroups) return cudaSuccess;
  const auto index = static_cast<size_t>(weights::index_of(scheme));
  const cudaError_t status = kFew[index].prepare(device.shared_limit);
  return status != cudaSuccess ? status : kMany[index].prepare(device.shared_limit);
}

cudaError_t launch_linear_many(const LinearMatrix& matrix, const InputRows& rows, const LinearInputs& inputs,
                               const LinearOutputs& outputs, cudaStream_t stream) {
  const auto index = static_cast<size_t>(weights::index_of(matrix.scheme));
  const bool few = inputs.tile_rows == kFewTileRows;
  const Kernel& kernel = few ? kFew[index] : kMany[index];
  const int32_t planes_begin = up_to(kernel.table_bytes(matrix), 1024) * 1024;
  const ManyCall call{.rows = rows, .inputs = inputs, .outputs = outputs, .planes_begin = planes_begin};
  const auto shared = static_cast<int32_t>(few ? sizeof(ManyShared<kFewTileRows>) : sizeof(ManyShared<kManyTileRows>));
  const dim3 grid(static_cast<uint32_t>(up_to(weights::panels_of(matrix.out), kPanels)),
                  static_cast<uint32_t>(up_to(rows.rows, inputs.tile_rows)));
  return kernel.launch(matrix, call, grid, planes_begin + shared, stream);
}

}  // namespace kvq::cuda
