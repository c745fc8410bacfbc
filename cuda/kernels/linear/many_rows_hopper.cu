#include "kernels/device/bulk_copies.cuh"
#include "kernels/device/overlap.cuh"
#include "kernels/device/tensor.cuh"
#include "kernels/device/warp.cuh"
#include "kernels/device/warpgroup.cuh"
#include "kernels/linear/decode.cuh"
#include "kernels/linear/shares.cuh"

#include <cooperative_groups.h>

#include <algorithm>
#include <array>
#include <utility>

namespace kvq::cuda {
namespace {

constexpr int32_t kGroups = 2;  // warpgroups that multiply; one more copies
constexpr int32_t kGroupThreads = 128;
constexpr int32_t kThreads = (kGroups + 1) * kGroupThreads;
constexpr int32_t kMultiplyingThreads = kGroups * kGroupThreads;
constexpr int32_t kPanels = kManyPanels;  // per block, one per warp
static_assert(kPanels * kWarpLanes == kMultiplyingThreads);
constexpr int32_t kStages = 4;
constexpr int32_t kBlockPlanes = kBlockColumns / kPlaneInputs;
constexpr int32_t kGroupsBarrier = 1;

constexpr int32_t plane_bytes(int32_t tile_rows) {
  return tile_rows * kPlaneInputs * static_cast<int32_t>(sizeof(uint16_t));
}

/// Shared memory of a block, behind the tables.
template <int32_t kRows>
struct ManyShared {
  alignas(1024) std::byte planes[kStages][plane_bytes(kRows)];
  uint64_t arrived[kStages];
  uint64_t free[kStages];
};

struct ManyCall {
  InputRows rows;
  LinearInputs inputs;
  int32_t planes_begin;  // in shared memory, in bytes
  LinearShares shares;
};

/// Columns of blocks of a segment that a thread block multiplies: the blocks of a cluster divide them.
struct ColumnRange {
  int32_t first;
  int32_t end;

  explicit __device__ __forceinline__ ColumnRange(const LinearSegment& segment) {
    const int32_t all = blocks_of(segment.columns);
    first = all * static_cast<int32_t>(blockIdx.z) / static_cast<int32_t>(gridDim.z);
    end = all * (static_cast<int32_t>(blockIdx.z) + 1) / static_cast<int32_t>(gridDim.z);
  }
};

/// Copies planes of the block's rows as stages become free; runs in one thread.
template <int32_t kRows, int32_t kSegments>
__device__ __forceinline__ void copy_planes(const LinearMatrix& matrix, const LinearInputs& inputs,
                                            ManyShared<kRows>& shared) {
  const int32_t planes = matrix.in / kPlaneInputs;
  const auto* of_rows =
      reinterpret_cast<const std::byte*>(inputs.halves) + int64_t{blockIdx.y} * planes * plane_bytes(kRows);
  PipelineState<kStages> state;
#pragma unroll 1
  for (int32_t k = 0; k < kSegments; ++k) {
    const ColumnRange columns(matrix.segments[k]);
    const int32_t before = matrix.segments[k].first_column / kPlaneInputs;
#pragma unroll 1
    for (int32_t i = before + kBlockPlanes * columns.first; i < before + kBlockPlanes * columns.end; ++i) {
      wait_copy(shared_address(&shared.free[state.stage]), state.parity ^ 1U);
      expect_bytes(shared.arrived[state.stage], plane_bytes(kRows));
      copy_bytes(shared.planes[state.stage], of_rows + int64_t{i} * plane_bytes(kRows), plane_bytes(kRows),
                 shared.arrived[state.stage]);
      state.advance();
    }
  }
}

/// Multiplies the block's rows by a warp's panel, together with the other warps of its warpgroup.
template <int32_t kRows>
class PanelProducts {
 public:
  explicit __device__ __forceinline__ PanelProducts(ManyShared<kRows>& shared) : shared_(shared) {}

  __device__ __forceinline__ const float (&sums() const)[kRows / 2] { return sums_; }

  /// \param scale  factor on the sums of earlier segments.
  template <typename Code>
  __device__ __forceinline__ void add(const LinearMatrix& matrix, const LinearSegment& segment, int32_t panel,
                                      const std::byte* table, float scale) {
    const int32_t lane = static_cast<int32_t>(threadIdx.x) % kWarpLanes;
    const CodeFinder finder = Code::finder(segment, table, lane);
    const ColumnRange columns(segment);
    const uint8_t* from =
        matrix.codes + panel * matrix.panel_bytes + segment.begin + int64_t{columns.first} * block_bytes(Code::kCode);
    if (scale != 1.0F) {
      wait_products<0>();
      hold(sums_);
#pragma unroll
      for (float& sum : sums_) sum *= scale;
    }
    const int32_t blocks = columns.end - columns.first;
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
        typename Code::Weights halves[2];
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
  /// Rearranges two pieces into the first operands of four products.
  template <typename Code>
  static __device__ __forceinline__ void join(const typename Code::Weights (&halves)[2], uint32_t (&operands)[4][4]) {
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
    wait_copy(shared_address(&shared_.arrived[state_.stage]), state_.parity);
    const uint64_t plane = describe_plane<128>(shared_address(shared_.planes[state_.stage]));
    begin_products();
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) multiply_registers(sums_, operands[i], plane + static_cast<uint64_t>(2 * i));
    commit_products();
    wait_products<1>();
    if (last_stage_ >= 0 && threadIdx.x % kWarpLanes == 0) arrive(shared_.free[last_stage_]);
    last_stage_ = state_.stage;
    state_.advance();
  }

  ManyShared<kRows>& shared_;
  PipelineState<kStages> state_;
  int32_t last_stage_ = -1;
  float sums_[kRows / 2] = {};
};

/// A warp's outputs: neighbours 2g and 2g + 1 of its panel for rows 8j + 2t and 8j + 2t + 1.
template <int32_t kRows>
class PanelOutputs {
 public:
  __device__ __forceinline__ PanelOutputs(const ManyCall& call, const LinearProduct& product, int32_t panel, float unit)
      : call_(call), product_(product), out_(panel * weights::kTileRows + this_lane() / 4 * 2) {
    const LinearMatrix& matrix = product.matrix;
#pragma unroll
    for (int32_t h = 0; h < 2; ++h) {
      if (out_ + h >= matrix.out) continue;
      factors_[h] = unit;
      if (matrix.row_scales != nullptr) {
        factors_[h] *= matrix.scale * __half2float(__ushort_as_half(__ldg(matrix.row_scales + out_ + h)));
      }
      if (matrix.bias != nullptr) biases_[h] = __ldg(matrix.bias + out_ + h);
    }
  }

  /// \param sums  the four sums of group j.
  __device__ __forceinline__ void write(int32_t j, const float (&sums)[4]) const {
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
      const int32_t row = static_cast<int32_t>(blockIdx.y) * kRows + 8 * j + this_lane() % 4 * 2 + i;
      if (row >= call_.rows.rows) continue;
      const float scale = call_.inputs.scales[row];
#pragma unroll
      for (int32_t h = 0; h < 2; ++h) {
        if (out_ + h >= product_.matrix.out) continue;
        write_float(product_.outputs.y, product_.outputs.dtype, int64_t{row} * product_.matrix.out + out_ + h,
                    sums[2 * h + i] * scale * factors_[h] + biases_[h]);
      }
    }
  }

 private:
  static __device__ __forceinline__ int32_t this_lane() { return static_cast<int32_t>(threadIdx.x) % kWarpLanes; }

  const ManyCall& call_;
  const LinearProduct& product_;
  int32_t out_;
  float factors_[2] = {};
  float biases_[2] = {};
};

/// Reduces the partial sums of a cluster's blocks over columns; each block writes some of the outputs.
template <int32_t kRows>
__device__ __forceinline__ void write_together(ManyShared<kRows>& shared, const float (&sums)[kRows / 2],
                                               const PanelOutputs<kRows>& outputs, bool has_panel) {
  constexpr int32_t kEights = kRows / 8;
  static_assert(sizeof(shared.planes) >= kMultiplyingThreads * sizeof(sums));
  const auto cluster = cooperative_groups::this_cluster();
  auto* own = reinterpret_cast<float4*>(shared.planes) + threadIdx.x;
  wait_at(kGroupsBarrier, kMultiplyingThreads);  // no warpgroup reads the planes any more
#pragma unroll
  for (int32_t j = 0; j < kEights; ++j) {
    own[j * kMultiplyingThreads] = make_float4(sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]);
  }
  cluster.sync();
  const auto blocks = static_cast<int32_t>(gridDim.z);
  const auto block = static_cast<int32_t>(blockIdx.z);
  const float4* of_block[kMostCluster];
#pragma unroll
  for (int32_t k = 0; k < kMostCluster; ++k) of_block[k] = cluster.map_shared_rank(own, min(k, blocks - 1));
#pragma unroll 1
  for (int32_t j = kEights * block / blocks; has_panel && j < kEights * (block + 1) / blocks; ++j) {
    float4 each[kMostCluster];  // all loads in flight at once
#pragma unroll
    for (int32_t k = 0; k < kMostCluster; ++k) each[k] = of_block[k][j * kMultiplyingThreads];
    float total[4] = {each[0].x, each[0].y, each[0].z, each[0].w};
#pragma unroll
    for (int32_t k = 1; k < kMostCluster; ++k) {
      if (k >= blocks) break;
      total[0] += each[k].x, total[1] += each[k].y, total[2] += each[k].z, total[3] += each[k].w;
    }
    outputs.write(j, total);
  }
  cluster.sync();  // no other block reads any more
}

template <Family kFamily, int32_t kQuarters, int32_t kRows>
__global__ void __launch_bounds__(kThreads, 1) many_kernel(const __grid_constant__ ManyCall call) {
  extern __shared__ __align__(1024) std::byte memory[];
  auto& shared = *reinterpret_cast<ManyShared<kRows>*>(memory + call.planes_begin);
  constexpr bool kHalves = weights::Scheme{kFamily, kQuarters}.has_halves();
  using First = LaneCode<kFamily, kHalves ? kQuarters - 1 : kQuarters>;
  using Second = LaneCode<kFamily, kHalves ? kQuarters + 1 : kQuarters>;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t group = __shfl_sync(0xFFFFFFFFU, thread / kGroupThreads, 0);
  auto block = static_cast<int32_t>(blockIdx.x);
  const LinearProduct& product = share_of(call.shares, block).product;
  const LinearMatrix& matrix = product.matrix;
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
    if (thread == kMultiplyingThreads) copy_planes<kRows, kHalves ? 2 : 1>(matrix, call.inputs, shared);
    return;
  }
  take_registers<240>();
  const int32_t n_panels = weights::panels_of(matrix.out);
  const int32_t panel = block * kPanels + thread / kWarpLanes;
  const int32_t there = min(panel, n_panels - 1);  // a warp without a panel multiplies, too
  PanelProducts<kRows> products(shared);
  products.template add<First>(matrix, matrix.segments[0], there, memory, 1.0F);
  float unit = matrix.segments[0].unit;
  if constexpr (kHalves) {
    if (matrix.segments[0].levels != matrix.segments[1].levels) {
      wait_at(kGroupsBarrier, kMultiplyingThreads);
      Second::template fill<kMultiplyingThreads>(matrix.segments[1], memory);
      wait_at(kGroupsBarrier, kMultiplyingThreads);
    }
    products.template add<Second>(matrix, matrix.segments[1], there, memory, unit / matrix.segments[1].unit);
    unit = matrix.segments[1].unit;
  }
  products.finish();
  const PanelOutputs<kRows> outputs(call, product, panel, unit);
  const float(&sums)[kRows / 2] = products.sums();
  if (gridDim.z > 1) return write_together<kRows>(shared, sums, outputs, panel < n_panels);
  if (panel >= n_panels) return;
#pragma unroll
  for (int32_t j = 0; j < kRows / 8; ++j) {
    outputs.write(j, {sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]});
  }
}

/// An instance and its attributes.
struct Kernel {
  cudaError_t (*launch)(const ManyCall&, dim3 grid, int32_t bytes, cudaStream_t);
  cudaError_t (*prepare)(int32_t shared_bytes);
  int32_t (*table_bytes)(const LinearMatrix&);
};

/// \param grid  blocks along z form a cluster.
template <Family kFamily, int32_t kQuarters, int32_t kRows>
cudaError_t launch(const ManyCall& call, dim3 grid, int32_t bytes, cudaStream_t stream) {
  const Launch launch{.grid = grid,
                      .threads = kThreads,
                      .shared_bytes = static_cast<size_t>(bytes),
                      .overlaps = true,
                      .cluster = grid.z};
  return launch_early(launch, many_kernel<kFamily, kQuarters, kRows>, stream, call);
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
constexpr auto kFew = kernels<kTileRowCounts[0]>(std::make_index_sequence<weights::kSchemeCount>());
constexpr auto kMany = kernels<kTileRowCounts[1]>(std::make_index_sequence<weights::kSchemeCount>());

}  // namespace

void count_clusters(LinearDevice& device) {
  device.clusters[1] = device.multiprocessors;
  const auto kernel = many_kernel<Family::kFloat16, 64, kMostTileRows>;
  if (share_all_memory(kernel, device.shared_limit) != cudaSuccess) return;
  for (uint32_t blocks = 2; blocks <= kMostCluster; ++blocks) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {1, 1, blocks};
    const cudaLaunchConfig_t config{
        dim3(1, 1, blocks), dim3(kThreads), static_cast<size_t>(device.shared_limit), nullptr, &attribute, 1};
    int32_t count = 0;
    if (cudaOccupancyMaxActiveClusters(&count, kernel, &config) == cudaSuccess) device.clusters[blocks] = count;
  }
  cudaGetLastError();  // clears the error: an unsupported configuration is no failure
}

cudaError_t prepare_linear_many(const weights::Scheme& scheme, const LinearDevice& device) {
  if (!device.has_warpgroups) return cudaSuccess;
  const auto index = static_cast<size_t>(weights::index_of(scheme));
  const cudaError_t status = kFew[index].prepare(device.shared_limit);
  return status != cudaSuccess ? status : kMany[index].prepare(device.shared_limit);
}

cudaError_t launch_linear_many(LinearProducts products, const InputRows& rows, const LinearInputs& inputs,
                               int32_t cluster, cudaStream_t stream) {
  const LinearMatrix& matrix = products.front().matrix;
  const auto index = static_cast<size_t>(weights::index_of(matrix.scheme));
  const bool few = inputs.tile_rows == kTileRowCounts[0];
  const Kernel& kernel = few ? kFew[index] : kMany[index];
  const ManyCall call{.rows = rows,
                      .inputs = inputs,
                      .planes_begin = up_to(kernel.table_bytes(matrix), 1024) * 1024,
                      .shares = share_blocks(products, kPanels)};
  const auto shared =
      static_cast<int32_t>(few ? sizeof(ManyShared<kTileRowCounts[0]>) : sizeof(ManyShared<kTileRowCounts[1]>));
  const dim3 grid(static_cast<uint32_t>(blocks_for(products, kPanels)),
                  static_cast<uint32_t>(up_to(rows.rows, inputs.tile_rows)), static_cast<uint32_t>(cluster));
  return kernel.launch(call, grid, call.planes_begin + shared, stream);
}

}  // namespace kvq::cuda
