// Decodes pages to tiles in device memory, for kernels whose blocks of rows are many.
#include "kernels/device/bulk_copies.cuh"
#include "kernels/device/stores.cuh"
#include "kernels/wide/pages.cuh"
#include "kernels/wide/visible.cuh"

#include <algorithm>

namespace kvq::cuda {
namespace {

constexpr int32_t kTileWarps = 8;

struct TileHeader {
  PageLayout layout;
  uint64_t arrived;
};

/// A block makes a tile at a time: [tile][page][header].
__global__ void __launch_bounds__(32 * kTileWarps)
    tile_kernel(const __grid_constant__ AttendArguments arguments, const __grid_constant__ WideLaunch launch,
                std::byte* tiles, int32_t page_bytes) {
  extern __shared__ __align__(1024) uint8_t memory[];
  const Lane lane = this_lane();
  const int32_t key_bytes = 2 * kSlots * launch.key_width;
  const int32_t tile_bytes = key_bytes + 2 * kSlots * launch.value_width;
  uint8_t* page = memory + tile_bytes;
  auto& header = *reinterpret_cast<TileHeader*>(page + page_bytes);
  const WideTiles& of_tiles = launch.of_tiles;
  if (threadIdx.x == 0) make_barrier(header.arrived, 1);
  uint32_t parity = 0;
#pragma unroll 1
  for (auto item = static_cast<int32_t>(blockIdx.x); item < of_tiles.total; item += static_cast<int32_t>(gridDim.x)) {
    int32_t sequence = 0;
    while (sequence + 1 < arguments.n_sequences && of_tiles.begins[sequence + 1] <= item) ++sequence;
    const int32_t of_sequence = item - of_tiles.begins[sequence];
    const int32_t head = of_sequence / of_tiles.counts[sequence];
    const Unit unit{sequence, launch.first_head + head, 0};
    const int32_t index = of_sequence - head * of_tiles.counts[sequence];
    if (index >= page_count(arguments, unit)) continue;
    const DevicePage record = pages_of(arguments, unit)[index];
    if (record.count() == 0) continue;
    const FormatCode format{record.format()};
    if (threadIdx.x == 0) {
      header.layout = layout_of_pages(arguments, format);
      wait_stores_read();  // of the tile before
      order_before_copies();
      expect_bytes(header.arrived, static_cast<size_t>(header.layout.bytes));
      copy_bytes(page, reinterpret_cast<const void*>(record.data), static_cast<size_t>(header.layout.bytes),
                 header.arrived);
    }
    __syncthreads();
    wait_copy(shared_address(&header.arrived), parity);
    parity ^= 1U;
    const PageMaker maker{header.layout, lane, {lane.warp, kTileWarps}};
    const uint32_t address = shared_address(page);
    maker.make<Side::kKeys>({arguments.head.keys}, launch.key_width, address, memory);
    maker.make<Side::kValues>({arguments.head.values}, launch.value_width,
                              address + static_cast<uint32_t>(header.layout.values_at), memory + key_bytes);
    order_before_copies();
    __syncthreads();
    if (lane.warp == 0) {
      start_store(tiles + static_cast<size_t>(item) * static_cast<size_t>(tile_bytes),
                  reinterpret_cast<const std::byte*>(memory), tile_bytes, lane.index);
      if (lane.index == 0) commit_stores();
    }
  }
  if (threadIdx.x == 0) wait_stores();
}

}  // namespace

cudaError_t launch_wide_tiles(const AttendArguments& arguments, const WideLaunch& launch, std::byte* tiles,
                              int32_t multiprocessors, int32_t shared_limit, cudaStream_t stream) {
  constexpr int32_t kReserved = 1024;  // by the driver, per block
  const int32_t page = (largest_page(arguments.head) + kOverrun + 127) / 128 * 128;
  const int32_t bytes =
      2 * kSlots * (launch.key_width + launch.value_width) + page + static_cast<int32_t>(sizeof(TileHeader));
  const cudaError_t status = cudaFuncSetAttribute(tile_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (status != cudaSuccess) return status;
  const int32_t blocks = (shared_limit + kReserved) / (bytes + kReserved) * multiprocessors;
  const int32_t all = std::min(blocks, launch.of_tiles.total);
  tile_kernel<<<static_cast<uint32_t>(all), 32 * kTileWarps, static_cast<size_t>(bytes), stream>>>(arguments, launch,
                                                                                                   tiles, page);
  return cudaGetLastError();
}

}  // namespace kvq::cuda
