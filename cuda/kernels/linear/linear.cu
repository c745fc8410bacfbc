#include "kernels/device/overlap.cuh"
#include "kernels/device/warp.cuh"
#include "kernels/linear/block_range.cuh"
#include "kernels/linear/decode.cuh"
#include "kernels/linear/inputs.cuh"
#include "kernels/linear/linear.h"
#include "kernels/linear/shares.cuh"

#include <algorithm>
#include <array>
#include <utility>

namespace kvq::cuda {
namespace {

constexpr int32_t kThreads = kLinearThreads;
constexpr int32_t kWarps = kLinearWarps;
constexpr int32_t kTileInputs = 8;  // rows of inputs per product
/// Maximum inputs of a single row that each block prepares for itself.
constexpr int32_t kMostOwnInputs = 8192;
/// Maximum panels per thread block, reduced if their sums take too much memory.
constexpr int32_t kMostPanels = 256;

/// Shared-memory layout in bytes. A thread block multiplies some panels, 16 outputs each, by up to 8 · kTiles rows of
/// inputs. Each warp takes a range of the panels' code blocks; partial sums meet in shared memory.
struct SharedLayout {
  int32_t sum_lanes;  // lanes of each four that hold sums of existing rows: 1, 2 or 4
  int32_t scales;     // scales of the panels' outputs, then their biases, behind the tables
  int32_t signs;      // signs of the inputs if the block prepares them
  int32_t inputs;     // FP16 inputs if the block prepares them
  int32_t sums;       // sums, or inputs during their rotation
  int32_t bytes;
};

struct LinearCall {
  InputRows rows;
  LinearInputs inputs;  // prepared, unless `own`
  SharedLayout layout;
  bool own;  // each block prepares the inputs for itself
  LinearShares shares;
};

/// Shared memory of a block.
struct LinearShared {
  std::byte* table;
  float* scales;
  float* biases;
  uint8_t* signs;
  uint16_t* inputs;
  float4* sums;

  __device__ LinearShared(const SharedLayout& layout, std::byte* memory, int32_t outputs)
      : table(memory),
        scales(reinterpret_cast<float*>(memory + layout.scales)),
        biases(scales + outputs),
        signs(reinterpret_cast<uint8_t*>(memory + layout.signs)),
        inputs(reinterpret_cast<uint16_t*>(memory + layout.inputs)),
        sums(reinterpret_cast<float4*>(memory + layout.sums)) {}
};

/// A block's rows of inputs, in shared or global memory.
struct ReadyRows {
  const uint16_t* halves;
  const float* scales;
  int32_t n;
};

/// A lane's inputs for a column of blocks, for each of kTiles.
template <int32_t kTiles>
struct LaneInputs {
  uint4 of[kTiles][kPieces];

  /// \param column  first column, within the segment.
  __device__ __forceinline__ void load(const LinearMatrix& matrix, const LinearSegment& segment, const ReadyRows& rows,
                                       int32_t column) {
    const int32_t lane = static_cast<int32_t>(threadIdx.x) % kWarpLanes;
#pragma unroll
    for (int32_t i = 0; i < kTiles; ++i) {
      // Product columns without a row repeat the last row.
      const int32_t row = min(kTileInputs * i + lane / 4, rows.n - 1);
      const uint16_t* from = rows.halves + int64_t{row} * matrix.in + segment.first_column + column + 8 * (lane % 4);
#pragma unroll
      for (int32_t piece = 0; piece < kPieces; ++piece) {
        of[i][piece] = make_uint4(0, 0, 0, 0);
        if (column + piece * kPieceColumns < segment.columns) {
          of[i][piece] = *reinterpret_cast<const uint4*>(from + piece * kPieceColumns);
        }
      }
    }
  }
};

/// Sums of a warp's panel in shared memory, [kTiles][8][sum_lanes].
template <int32_t kTiles>
__device__ __forceinline__ float4* sums_of(const LinearShared& shared, const PanelRange& panels, int32_t warp,
                                           int32_t panel, int32_t sum_lanes) {
  return shared.sums + (warp * panels.n + panel) * (kTiles * 8 * sum_lanes);
}

template <int32_t kTiles>
__device__ __forceinline__ void clear_sums(const LinearShared& shared, const PanelRange& panels, int32_t sum_lanes) {
  float4* sums = sums_of<kTiles>(shared, panels, this_warp(), 0, sum_lanes);
  for (auto i = static_cast<int32_t>(threadIdx.x) % kWarpLanes; i < panels.n * kTiles * 8 * sum_lanes;
       i += kWarpLanes) {
    sums[i] = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
  }
  __syncwarp();
}

/// Adds the products of one code block to the sums of its panel.
template <typename Code, int32_t kTiles>
__device__ __forceinline__ void multiply_block(const uint32_t (&words)[Code::kWords], const CodeFinder& finder,
                                               const LaneInputs<kTiles>& x, float unit, int32_t sum_lanes,
                                               float4* sums) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % kWarpLanes;
  float sum[kTiles][4] = {};
#pragma unroll
  for (int32_t piece = 0; piece < kPieces; piece += 2) {
    typename Code::Weights halves[2];
    Code::decode(words, piece, lane, finder, halves);
#pragma unroll
    for (int32_t k = 0; k < 2 * Code::kParts; ++k) {
      const auto& a = halves[k / Code::kParts].of[k % Code::kParts];
#pragma unroll
      for (int32_t tile = 0; tile < kTiles; ++tile) {
        const uint4& b = x.of[tile][piece + k / Code::kParts];
        mma(sum[tile], a[0][0], a[1][0], a[0][1], a[1][1], b.x, b.y);
        mma(sum[tile], a[0][2], a[1][2], a[0][3], a[1][3], b.z, b.w);
      }
    }
  }
  if (lane % 4 >= sum_lanes) return;
#pragma unroll
  for (int32_t tile = 0; tile < kTiles; ++tile) {
    float4& all = sums[tile * 8 * sum_lanes];
    const float4 before = all;
    all = make_float4(fmaf(unit, sum[tile][0], before.x), fmaf(unit, sum[tile][1], before.y),
                      fmaf(unit, sum[tile][2], before.z), fmaf(unit, sum[tile][3], before.w));
  }
}

/// Adds the products of a segment's blocks in `range` to the warp's sums. \param next  first words of the range.
template <typename Code, int32_t kTiles>
__device__ __forceinline__ void multiply(const LinearMatrix& matrix, const LinearSegment& segment,
                                         const PanelRange& panels, const BlockRange& range,
                                         uint32_t (&next)[Code::kWords], const LinearShared& shared,
                                         const ReadyRows& rows, int32_t sum_lanes) {
  if (range.blocks == 0) return;
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % kWarpLanes;
  const CodeFinder finder = Code::finder(segment, shared.table, lane);
  const SegmentCodes<Code> codes(matrix, segment, panels);
  const int32_t panel_sums = kTiles * 8 * sum_lanes;
  float4* const sums = sums_of<kTiles>(shared, panels, this_warp(), 0, sum_lanes) + lane / 4 * sum_lanes + lane % 4;
  int32_t left = range.blocks;
  int32_t column = range.column;
  int32_t panel = range.panel;
  const uint8_t* from = codes.column(column) + panel * codes.panel_bytes();
#pragma unroll 1
  while (true) {
    LaneInputs<kTiles> x;
    x.load(matrix, segment, rows, column * kBlockColumns);
    const int32_t end = min(panel + left, panels.n);
    left -= end - panel;
    const uint8_t* const next_column = codes.column(++column);
    if (left > 0) codes.fetch_column(column);
    float4* to = sums + panel * panel_sums;
#pragma unroll 1
    for (; panel < end; ++panel) {
      uint32_t words[Code::kWords];
#pragma unroll
      for (int32_t k = 0; k < Code::kWords; ++k) words[k] = next[k];
      codes.fetch_panel(from, panel);
      from = panel + 1 < panels.n ? from + codes.panel_bytes() : next_column;
      if (panel + 1 < end || left > 0) load_words<Code>(from, next);
      multiply_block<Code, kTiles>(words, finder, x, segment.unit, sum_lanes, to);
      to += panel_sums;
    }
    if (left == 0) return;
    panel = 0;
  }
}

/// Reduces the sums of all warps to outputs.
template <int32_t kTiles>
__device__ __forceinline__ void write_outputs(const LinearProduct& product, const LinearShared& shared,
                                              const ReadyRows& rows, int32_t first_row, const PanelRange& panels,
                                              int32_t sum_lanes) {
  const LinearMatrix& matrix = product.matrix;
  const int32_t lane_shift = __ffs(sum_lanes) - 1;
  const int32_t panel_shift = lane_shift + (kTiles == 1 ? 5 : 6);
  const int32_t all = panels.n << panel_shift;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < all; i += kThreads) {
    const int32_t at = i & ((1 << panel_shift) - 1);
    const int32_t group = at / 4 >> lane_shift;  // group of eight in a tile of inputs
    const int32_t t = at / 4 & (sum_lanes - 1);
    const int32_t place = (i >> panel_shift) * weights::kTileRows + group % 8 * 2 + at % 4 / 2;
    const int32_t out = panels.first * weights::kTileRows + place;
    const int32_t row = group / 8 * kTileInputs + 2 * t + at % 2;
    if (out >= matrix.out || row >= rows.n) continue;
    const float* of_warps = reinterpret_cast<const float*>(shared.sums) + i;
    float sum = 0.0F;
#pragma unroll
    for (int32_t warp = 0; warp < kWarps; ++warp) sum += of_warps[warp * all];
    sum *= rows.scales[row];
    if (matrix.row_scales != nullptr) sum *= shared.scales[place];
    if (matrix.bias != nullptr) sum += shared.biases[place];
    write_float(product.outputs.y, product.outputs.dtype, int64_t{first_row + row} * matrix.out + out, sum);
  }
}

/// Target blocks per multiprocessor: two where registers allow, so that the next kernel's blocks prepare while this
/// one's last blocks multiply.
template <Family kFamily, int32_t kQuarters, int32_t kTiles>
constexpr int32_t kResidentBlocks = kTiles == 1 && kQuarters <= 20 ? 2 : 1;

template <Family kFamily, int32_t kQuarters, int32_t kTiles>
__global__ void __launch_bounds__(kThreads, kResidentBlocks<kFamily, kQuarters, kTiles>)
    linear_kernel(const __grid_constant__ LinearCall call) {
  extern __shared__ __align__(128) std::byte memory[];
  __shared__ uint32_t largest;
  __shared__ float own_scale;
  constexpr bool kHalves = weights::Scheme{kFamily, kQuarters}.has_halves();
  using First = LaneCode<kFamily, kHalves ? kQuarters - 1 : kQuarters>;
  using Second = LaneCode<kFamily, kHalves ? kQuarters + 1 : kQuarters>;
  const SharedLayout& layout = call.layout;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  auto block = static_cast<int32_t>(blockIdx.x);
  const LinearShare& share = share_of(call.shares, block);
  const LinearMatrix& matrix = share.product.matrix;
  const PanelRange panels{block * share.panels + min(block, share.more), share.panels + (block < share.more ? 1 : 0)};
  const int32_t outputs = panels.n * weights::kTileRows;
  const LinearShared shared(layout, memory, outputs);

  // First the work that does not depend on earlier kernels.
  const BlockRange range(matrix.segments[0], panels);  // the same for both segments
  const SegmentCodes<First> first_codes(matrix, matrix.segments[0], panels);
  const SegmentCodes<Second> second_codes(matrix, matrix.segments[kHalves ? 1 : 0], panels);
  first_codes.fetch_column(range.column);
  if (kHalves) second_codes.fetch_column(range.column);
  if (thread == 0) largest = 0;
  for (int32_t i = thread; i < outputs; i += kThreads) {
    const int32_t out = panels.first * weights::kTileRows + i;
    if (out >= matrix.out) break;
    if (matrix.row_scales != nullptr) {
      shared.scales[i] = matrix.scale * __half2float(__ushort_as_half(__ldg(matrix.row_scales + out)));
    }
    if (matrix.bias != nullptr) shared.biases[i] = __ldg(matrix.bias + out);
  }
  if (call.own) copy_signs<kThreads>(call.rows, shared.signs);
  First::template fill<kThreads>(matrix.segments[0], shared.table);
  uint32_t words[First::kWords];
  first_codes.load_first(range, words);
  const ReadyRowMaker<kThreads> maker(
      call.rows, {0, matrix.in},
      {reinterpret_cast<float*>(shared.sums), &largest, call.rows.signs != nullptr ? shared.signs : nullptr});
  __syncthreads();
  wait_for_earlier_kernels();
  const int32_t first_row = static_cast<int32_t>(blockIdx.y) * kTileInputs * kTiles;
  ReadyRows rows{.halves = call.inputs.halves + int64_t{first_row} * matrix.in,
                 .scales = call.inputs.scales + first_row,
                 .n = min(call.rows.rows - first_row, kTileInputs * kTiles)};
  if (call.own) {
    maker.run({shared.inputs, &own_scale, 0}, 0);
    rows.halves = shared.inputs;
    rows.scales = &own_scale;
  }
  let_next_kernel_begin();
  clear_sums<kTiles>(shared, panels, layout.sum_lanes);
  multiply<First, kTiles>(matrix, matrix.segments[0], panels, range, words, shared, rows, layout.sum_lanes);
  if constexpr (kHalves) {
    if (matrix.segments[0].levels != matrix.segments[1].levels) {
      __syncthreads();
      Second::template fill<kThreads>(matrix.segments[1], shared.table);
      __syncthreads();
    }
    uint32_t second_words[Second::kWords];
    second_codes.load_first(range, second_words);
    multiply<Second, kTiles>(matrix, matrix.segments[1], panels, range, second_words, shared, rows, layout.sum_lanes);
  }
  __syncthreads();
  write_outputs<kTiles>(share.product, shared, rows, first_row, panels, layout.sum_lanes);
}

/// An instance and its attributes.
struct Kernel {
  cudaError_t (*launch)(const LinearCall&, dim3 grid, bool overlaps, cudaStream_t);
  cudaError_t (*prepare)(int32_t shared_bytes);
  int32_t (*table_bytes)(const LinearMatrix&);
};

template <Family kFamily, int32_t kQuarters, int32_t kTiles>
cudaError_t launch(const LinearCall& call, dim3 grid, bool overlaps, cudaStream_t stream) {
  const Launch launch{
      .grid = grid, .threads = kThreads, .shared_bytes = static_cast<size_t>(call.layout.bytes), .overlaps = overlaps};
  return launch_early(launch, linear_kernel<kFamily, kQuarters, kTiles>, stream, call);
}

template <Family kFamily, int32_t kQuarters, int32_t kTiles>
cudaError_t prepare(int32_t shared_bytes) {
  return share_all_memory(linear_kernel<kFamily, kQuarters, kTiles>, shared_bytes);
}

/// Kernels of every scheme, in the order of weights::index_of.
template <int32_t kTiles, size_t... i>
constexpr std::array<Kernel, sizeof...(i)> kernels(std::index_sequence<i...> /*each*/) {
  return {Kernel{launch<weights::kSchemes[i].family, weights::kSchemes[i].quarters, kTiles>,
                 prepare<weights::kSchemes[i].family, weights::kSchemes[i].quarters, kTiles>,
                 linear_table_bytes<weights::kSchemes[i].family, weights::kSchemes[i].quarters>}...};
}
constexpr auto kFew = kernels<1>(std::make_index_sequence<weights::kSchemeCount>());
constexpr auto kMany = kernels<2>(std::make_index_sequence<weights::kSchemeCount>());

constexpr int32_t kStaticBytes = 256;  // maximum static shared memory
/// Bytes of a panel's scales and biases.
constexpr int32_t kPanelBytes = 2 * weights::kTileRows * static_cast<int32_t>(sizeof(float));

int32_t half_bytes(int32_t inputs) { return inputs * static_cast<int32_t>(sizeof(uint16_t)); }
int32_t number_bytes(int32_t inputs) { return transform_place(inputs) * static_cast<int32_t>(sizeof(float)); }

/// \param panels  maximum per thread block.
SharedLayout shared_layout(int32_t table_bytes, const InputRows& rows, int32_t n_tiles, int32_t panels, bool own) {
  const int32_t inputs = own ? rows.in : 0;
  const auto aligned = [](int32_t bytes) { return up_to(bytes, 16) * 16; };
  SharedLayout layout{};
  layout.sum_lanes = n_tiles == 1 && rows.rows <= 4 ? (rows.rows + 1) / 2 : 4;
  layout.scales = table_bytes;
  layout.signs = layout.scales + panels * kPanelBytes;
  layout.inputs = aligned(layout.signs + (own ? rows.in / 8 : 0));
  layout.sums = layout.inputs + half_bytes(inputs);
  const int32_t sums = panels * kWarps * n_tiles * 8 * layout.sum_lanes * static_cast<int32_t>(sizeof(float4));
  layout.bytes = layout.sums + std::max(number_bytes(inputs), sums);
  return layout;
}

/// Least number of panels per thread block with which all blocks are resident at once.
int32_t least_panels(LinearProducts products, int32_t multiprocessors) {
  int32_t all = 0;
  for (const LinearProduct& each : products) all += panels_of(each);
  int32_t panels = up_to(all, multiprocessors);
  // Fewer multiprocessors than matrices cannot hold all blocks.
  while (panels < all && blocks_for(products, panels) > multiprocessors) ++panels;
  return panels;
}

}  // namespace

bool has_room_for_inputs(const InputRows& rows, const LinearDevice& device) {
  if (rows.rows > 1 || rows.in > kMostOwnInputs) return false;
  const int32_t others = kStaticBytes + kTrellisTableBytes + kPanelBytes + rows.in / 8 + 32;
  return others + half_bytes(rows.in) + number_bytes(rows.in) <= device.shared_limit;
}

cudaError_t prepare_linear(const weights::Scheme& scheme, const LinearDevice& device) {
  const auto index = static_cast<size_t>(weights::index_of(scheme));
  for (const Kernel& kernel : {kFew[index], kMany[index]}) {
    const cudaError_t status = kernel.prepare(device.shared_limit - kStaticBytes);
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

cudaError_t launch_linear(LinearProducts products, const InputRows& rows, const LinearInputs* inputs,
                          const LinearDevice& device, cudaStream_t stream) {
  const auto index = static_cast<size_t>(weights::index_of(products.front().matrix.scheme));
  const int32_t n_tiles = rows.rows <= kTileInputs ? 1 : 2;
  const Kernel& kernel = (n_tiles == 1 ? kFew : kMany)[index];
  LinearCall call{.rows = rows,
                  .inputs = inputs != nullptr ? *inputs : LinearInputs{},
                  .layout = {},
                  .own = inputs == nullptr,
                  .shares = {}};
  const int32_t table_bytes = kernel.table_bytes(products.front().matrix);
  int32_t panels = std::min(least_panels(products, device.multiprocessors), kMostPanels);
  for (;; panels = (panels + 1) / 2) {
    call.layout = shared_layout(table_bytes, rows, n_tiles, panels, call.own);
    if (call.layout.bytes + kStaticBytes <= device.shared_limit || panels == 1) break;
  }
  call.shares = share_blocks(products, panels);
  const dim3 grid(static_cast<uint32_t>(blocks_for(products, panels)),
                  static_cast<uint32_t>(up_to(rows.rows, n_tiles * kTileInputs)));
  return kernel.launch(call, grid, device.overlaps, stream);
}

}  // namespace kvq::cuda
