// Decodes pages of any kind to FP16 tiles.
#pragma once

#include "kernels/attend/ring.cuh"
#include "kernels/device/stores.cuh"
#include "kernels/prefill/made_side.cuh"
#include "kernels/prefill/rotation.cuh"

#include <algorithm>

namespace kvq::cuda {

constexpr int32_t kUnpackWarps = 12;

/// All kinds of pages.
template <int DP, bool kFull>
using UnpackGeometry = Geometry<DP, kFull, 1, Lists::kGains>;

/// Bytes of the largest side in codes, and of the largest page whose sides' bytes are mixed.
template <int DP>
inline constexpr int32_t kLargestCodes = std::max(
    {full_places(Side::kKeys, CodeType::integer(8), DP).bytes,
     full_places(Side::kValues, CodeType::integer(8), DP).bytes,
     page_places(FormatCode{FormatCode::both(CodeType::gain_scalar(4)).bits | 1U << FormatCode::kPageMeanBit}, DP)
         .bytes});

/// Shared memory of a warp.
template <int DP>
struct UnpackMemory {
  alignas(128) uint8_t side[(kLargestCodes<DP> + kOverrun + 127) / 128 * 128];
  alignas(128) std::byte made[2 * kSlots * DP];  // a decoded side of a page in tile layout
  uint64_t arrived;
};

/// Rotates a decoded side of a page, or rotates it back. `plane`: channels of a plane of keys; `scratch`:
/// [kRotatedRows][G::kWidth] in shared memory, of this warp.
template <Side kSide, typename G>
__device__ __forceinline__ void rotate_side(const G& geometry, int32_t plane, float* scratch, std::byte* memory) {
  constexpr int32_t kWidth = G::kWidth;
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const RowRotation<kWidth> rotation(geometry.head_dim());
  const auto number = [&](int32_t slot, int32_t channel) {
    const int32_t at = kSide == Side::kKeys ? plane_chunk_at(plane, kSlots, slot, channel) + channel % 8 * 2
                                            : value_chunk_at(slot, channel) + slot % 8 * 2;
    return reinterpret_cast<__half*>(memory + at);
  };
  __syncwarp();
#pragma unroll 1
  for (int32_t slot = 0; slot < kSlots; slot += kRotatedRows) {
    RowShares<kWidth> x;
#pragma unroll
    for (int32_t r = 0; r < kRotatedRows; ++r) {
#pragma unroll
      for (int32_t i = 0; i < kWidth / 32; ++i) {
        const int32_t channel = lane + 32 * i;
        x[r][i] = geometry.has_channel(channel) ? __half2float(*number(slot + r, channel)) : 0.0F;
      }
    }
    rotation.apply(scratch, x);
#pragma unroll
    for (int32_t r = 0; r < kRotatedRows; ++r) {
#pragma unroll
      for (int32_t i = 0; i < kWidth / 32; ++i) {
        const int32_t channel = lane + 32 * i;
        if (geometry.has_channel(channel)) *number(slot + r, channel) = __float2half_rn(saturated(x[r][i]));
      }
    }
  }
}

template <int DP, bool kFull>
struct Unpacker {
  using G = UnpackGeometry<DP, kFull>;

  const AttendArguments& arguments;
  const Tiles& tiles;
  UnpackMemory<DP>& memory;
  G key_side;
  G value_side;
  Lane lane;
  uint32_t parity = 0;

  /// Decodes one side of page `item / 2`, counted over the tiles of all sequences and heads; even items are keys.
  __device__ __forceinline__ void run(int32_t item) {
    const Side side = item % 2 == 0 ? Side::kKeys : Side::kValues;
    item /= 2;
    const int32_t tile = item / kTilePages;
    const Unit unit = unit_with(tile);
    const int32_t index = (tile - tile_list(arguments, tiles, unit).first) * kTilePages + item % kTilePages;
    const int32_t pages = page_count(arguments, unit);
    const DevicePage page = index < pages ? page_record(arguments, unit, index) : DevicePage{};
    const int32_t slot = item % kTilePages * kSlots;  // the page's first slot in the tile
    if (lane.index == 0) wait_stores_read();
    __syncwarp();
    const bool empty = page.count() == 0 || is_out_of_sight(unit, index, pages);
    if (side == Side::kKeys) {
      TileTokens& tokens = tiles.tokens[tile];
      tokens.positions[slot + lane.index] =
          lane.index < page.count() ? position_in_page(arguments, unit, page, index, lane.index) : INT32_MAX;
      if (slot == 0) write_range(unit, index, pages, tokens);
      const MadeSide<G> made{key_side, tiles.key_width, lane, memory.made};
      if (empty) {
        made.clear();
      } else {
        unpack_keys(page, made);
      }
      order_before_copies();
      __syncwarp();
      const int32_t plane = made.plane();
      std::byte* to = tiles.keys + tile_bytes(tiles.key_width) * static_cast<size_t>(tile) + slot * 2 * plane;
      for (int32_t i = 0; i < tiles.key_width / plane; ++i) {
        start_store(to + i * kTileTokens * 2 * plane, memory.made + i * kSlots * 2 * plane, kSlots * 2 * plane,
                    lane.index);
      }
    } else {
      const MadeSide<G> made{value_side, tiles.value_width, lane, memory.made};
      if (empty) {
        made.clear();
      } else {
        unpack_values(page, made);
      }
      order_before_copies();
      __syncwarp();
      const int32_t bytes = 2 * kSlots * tiles.value_width;
      start_store(tiles.values + tile_bytes(tiles.value_width) * static_cast<size_t>(tile) + item % kTilePages * bytes,
                  memory.made, bytes, lane.index);
    }
    if (lane.index == 0) commit_stores();
  }

 private:
  /// The list that has a tile.
  __device__ __forceinline__ Unit unit_with(int32_t tile) const {
    if (tiles.round != nullptr) {
      const int32_t* starts = arguments.lists.pages.page_starts;
      const int32_t place = __ldg(tiles.round) + tile;
      const int32_t sequence = last_not_above(starts, arguments.n_sequences, place / arguments.kv_heads);
      const int32_t before = __ldg(starts + sequence);
      const int32_t head = (place - before * arguments.kv_heads) / (__ldg(starts + sequence + 1) - before);
      return {sequence, head, 0};
    }
    int32_t sequence = 0;
    while (sequence + 1 < arguments.n_sequences && tiles.begins[sequence + 1] <= tile) ++sequence;
    const int32_t head = (tile - tiles.begins[sequence]) / tiles.counts[sequence];
    return {sequence, tiles.first_head + head, 0};
  }

  /// `index`: first page of the tile.
  __device__ __forceinline__ void write_range(const Unit& unit, int32_t index, int32_t pages, TileTokens& tokens) {
    const int32_t mine = index + lane.index % kTilePages;
    const DevicePage page = mine < pages ? page_record(arguments, unit, mine) : DevicePage{};
    const bool complete = __all_sync(kAll, page.count() == kSlots);
    if (lane.index == 0) tokens.first = page.count() > 0 ? position_in_page(arguments, unit, page, mine, 0) : INT32_MAX;
    if (lane.index == kTilePages - 1) {
      tokens.last = complete ? position_in_page(arguments, unit, page, mine, kSlots - 1) : INT32_MAX;
    }
  }

  /// Whether the window hides the whole tile of page `index` from all queries.
  __device__ __forceinline__ bool is_out_of_sight(const Unit& unit, int32_t index, int32_t pages) const {
    const int32_t last = index | (kTilePages - 1);
    if (arguments.window == 0 || last >= pages || !has_consecutive_queries(arguments, unit)) return false;
    const int32_t first_query = max(query_position(arguments, unit, 0), 0);
    const DevicePage page = page_record(arguments, unit, last);
    return page.count() == kSlots &&
           position_in_page(arguments, unit, page, last, kSlots - 1) <= newest_hidden(first_query, arguments.window);
  }

  /// Copies a side that begins `at` bytes into a page to shared memory, and returns its shared address.
  __device__ __forceinline__ uint32_t load_side(const DevicePage& page, const PageLayout& layout, int32_t at,
                                                int32_t bytes) {
    const bool mixed = layout.format.both_have_gains();
    const uint32_t to = shared_address(memory.side);
    const uint32_t arrived = shared_address(&memory.arrived);
    __syncwarp();
    start_copy(to, page.data + static_cast<uint64_t>(mixed ? 0 : at), mixed ? layout.bytes : bytes, arrived, lane.index,
               0);
    wait_copy(arrived, parity);
    parity ^= 1U;
    return to + static_cast<uint32_t>(mixed ? at : 0);
  }

  /// Reads numbers of device memory.
  template <typename T>
  __device__ __forceinline__ static auto numbers_at(uint64_t address) {
    return [from = reinterpret_cast<const std::byte*>(address)](int32_t at) {
      return __ldg(reinterpret_cast<const T*>(from + at));
    };
  }

  __device__ __forceinline__ PageLayout layout_of_page(const DevicePage& page) const {
    const FormatCode format{page.format()};
    if constexpr (kFull) return layout_of(key_side, format);
    return {page_places(format, arguments.head), format, format.group_shift()};
  }

  __device__ __forceinline__ void unpack_keys(const DevicePage& page, const MadeSide<G>& to) {
    const PageLayout layout = layout_of_page(page);
    to.pad_keys();
    if (layout.format.keys().is_float16()) {
      to.copy_keys(numbers_at<uint32_t>(page.data));
    } else {
      to.decode_keys(page_side(key_side, layout, lane, load_side(page, layout, 0, layout.keys.bytes)));
    }
    if ((tiles.rotated_keys != 0) != layout.format.hadamard_keys()) {
      rotate_side<Side::kKeys>(key_side, to.plane(), scratch(), memory.made);
    }
  }

  __device__ __forceinline__ void unpack_values(const DevicePage& page, const MadeSide<G>& to) {
    const PageLayout layout = layout_of_page(page);
    to.pad_values();
    if (layout.format.values().is_float16()) {
      to.copy_values(numbers_at<uint4>(page.data + static_cast<uint64_t>(layout.values_at)));
    } else {
      to.decode_values(
          page_side(value_side, layout, lane, load_side(page, layout, layout.values_at, layout.values.bytes)));
    }
    if ((tiles.rotated_values != 0) != layout.format.hadamard_values()) {
      rotate_side<Side::kValues>(value_side, to.plane(), scratch(), memory.made);
    }
  }

  /// In place of the side in codes.
  __device__ __forceinline__ float* scratch() const {
    static_assert(sizeof(memory.side) >= kRotatedRows * DP * sizeof(float));
    return reinterpret_cast<float*>(memory.side);
  }
};

template <int DP, bool kFull>
__global__ void __launch_bounds__(32 * kUnpackWarps, 1)
    unpack_kernel(const __grid_constant__ AttendArguments arguments, const __grid_constant__ Tiles tiles) {
  extern __shared__ __align__(128) uint8_t shared[];
  const Lane lane = this_lane();
  auto& memory = reinterpret_cast<UnpackMemory<DP>*>(shared)[lane.warp];
  Unpacker<DP, kFull> unpacker{arguments, tiles, memory, {arguments.head.keys}, {arguments.head.values}, lane};
  if (lane.index == 0) make_copy_barrier(shared_address(&memory.arrived));
  order_before_copies();
  __syncwarp();
  const int32_t filled = tiles.round == nullptr ? tiles.total : __ldg(tiles.round + 1) - __ldg(tiles.round);
  const int32_t items = 2 * kTilePages * filled;
  const auto warps = static_cast<int32_t>(gridDim.x) * lane.warps;
#pragma unroll 1
  for (auto item = static_cast<int32_t>(blockIdx.x) * lane.warps + lane.warp; item < items; item += warps) {
    unpacker.run(item);
  }
  if (lane.index == 0) wait_stores();
}

template <int DP, bool kFull>
cudaError_t launch_instance(const AttendArguments& arguments, const Tiles& tiles, int32_t multiprocessors,
                            int32_t shared_limit, cudaStream_t stream) {
  constexpr auto kBytes = static_cast<int32_t>(sizeof(UnpackMemory<DP>));
  const int32_t warps = std::min(kUnpackWarps, shared_limit / kBytes);
  const int32_t needed = (2 * kTilePages * tiles.total + warps - 1) / warps;
  const cudaError_t status =
      cudaFuncSetAttribute(unpack_kernel<DP, kFull>, cudaFuncAttributeMaxDynamicSharedMemorySize, warps * kBytes);
  if (status != cudaSuccess) return status;
  const auto blocks = static_cast<uint32_t>(std::min(needed, multiprocessors));
  unpack_kernel<DP, kFull><<<blocks, 32 * warps, warps * kBytes, stream>>>(arguments, tiles);
  return cudaGetLastError();
}

}  // namespace kvq::cuda
