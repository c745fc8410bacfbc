// Pages of any kind become tiles of halves.
#pragma once

#include "kernels/attend_ring.cuh"
#include "kernels/decoding.cuh"
#include "kernels/prefill.h"

namespace kvq::cuda {

constexpr int32_t kUnpackWarps = 8;

/// All kinds of pages, 16 rows at a time.
template <int D>
using UnpackGeometry = Geometry<D, true, 2, Lists::kGains>;

/// Bytes of the largest page of which some side is in codes.
template <int D>
inline constexpr int32_t kLargestCodes =
    page_bytes({static_cast<uint32_t>(Kind::kFloat16) | static_cast<uint32_t>(Kind::kInt8) << 5U}, D).bytes;

template <int D>
struct UnpackShared {
  using Rows = __half[16][D + 8];

  alignas(16) Rows plain[D / 16];    // a unit matrix
  alignas(16) Rows rotated[D / 16];  // signs of a Hadamard matrix
  alignas(128) uint8_t pages[kUnpackWarps][(kLargestCodes<D> + kOverrun + 127) / 128 * 128];
  uint64_t arrived[kUnpackWarps];
};

/// One of four pages of a tile.
struct TilePlace {
  std::byte* keys;  // of the tile
  std::byte* values;
  int32_t slot;  // first of the page's in the tile
};

/// Where a chunk of 16 bytes is: of row `row` of planes of `rows` rows, whose 64 numbers a plane go on in the next.
template <int kRows>
__device__ __forceinline__ int32_t chunk_at(int32_t row, int32_t number) {
  return (number / 64 * kRows + row) * 128 + ((number / 8 % 8) ^ (row & 7)) * 16;
}

template <int D>
__device__ __forceinline__ void store_keys(const Scores<2>& scores, int32_t first_channel, const Lane& lane,
                                           const TilePlace& place) {
#pragma unroll
  for (int32_t tile = 0; tile < 4; ++tile) {
    const int32_t row = place.slot + token_of(lane.g, tile);
#pragma unroll
    for (int32_t n = 0; n < 2; ++n) {
      const float(&two)[4] = scores[n][tile / 2];
      const int32_t at = chunk_at<kTileTokens>(row, first_channel + 8 * n) + 4 * lane.t;
      *reinterpret_cast<uint32_t*>(place.keys + at) = pack_finite(two[2 * (tile % 2)], two[2 * (tile % 2) + 1]);
    }
  }
}

template <int D>
__device__ __forceinline__ void store_values(const Outputs<UnpackGeometry<D>>& outputs, int32_t first_token,
                                             const Lane& lane, const TilePlace& place) {
#pragma unroll
  for (int32_t n = 0; n < 2; ++n) {
#pragma unroll
    for (int32_t m = 0; m < D / 32; ++m) {
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        const float(&four)[4] = outputs.channels[n][m][i / 2];
        const int32_t channel = 32 * m + 4 * lane.g + i;
        const int32_t at = chunk_at<D>(channel, first_token + 8 * n) + 4 * lane.t;
        *reinterpret_cast<uint32_t*>(place.values + at) = pack_finite(four[2 * (i % 2)], four[2 * (i % 2) + 1]);
      }
    }
  }
}

/// A side of FP16 from device memory, a token a lane.
template <int D>
__device__ __forceinline__ void copy_keys(const std::byte* keys, const Lane& lane, const TilePlace& place) {
  const int32_t row = place.slot + lane.index;
#pragma unroll 4
  for (int32_t chunk = 0; chunk < D / 8; ++chunk) {
    uint32_t words[4];
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      const int32_t at = key_chunk(Kind::kFloat16, (4 * chunk + i) * 8 + lane.index / 4);
      words[i] = __ldg(reinterpret_cast<const uint32_t*>(keys + at * 16) + lane.index % 4);
    }
    *reinterpret_cast<uint4*>(place.keys + chunk_at<kTileTokens>(row, 8 * chunk)) = {words[0], words[1], words[2],
                                                                                     words[3]};
  }
}

/// The same of values, a channel a lane.
template <int D>
__device__ __forceinline__ void copy_values(const std::byte* values, const Lane& lane, const TilePlace& place) {
#pragma unroll
  for (int32_t channel = lane.index; channel < D; channel += 32) {
#pragma unroll
    for (int32_t chunk = 0; chunk < kSlots / 8; ++chunk) {
      uint32_t words[4];
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        const int32_t at = value_chunk(Kind::kFloat16, D, (4 * chunk + i) * (D / 4) + channel / 4);
        words[i] = __ldg(reinterpret_cast<const uint32_t*>(values + at * 16) + channel % 4);
      }
      *reinterpret_cast<uint4*>(place.values + chunk_at<D>(channel, place.slot + 8 * chunk)) = {words[0], words[1],
                                                                                                words[2], words[3]};
    }
  }
}

/// What products with weight 0 may read.
template <int D>
__device__ __forceinline__ void clear_page(const Lane& lane, const TilePlace& place) {
  const uint4 zeros{0, 0, 0, 0};
#pragma unroll 1
  for (int32_t chunk = 0; chunk < D / 8; ++chunk) {
    *reinterpret_cast<uint4*>(place.keys + chunk_at<kTileTokens>(place.slot + lane.index, 8 * chunk)) = zeros;
  }
#pragma unroll 1
  for (int32_t i = lane.index; i < D * (kSlots / 8); i += 32) {
    *reinterpret_cast<uint4*>(place.values + chunk_at<D>(i % D, place.slot + 8 * (i / D))) = zeros;
  }
}

template <int D>
struct Unpacker {
  using G = UnpackGeometry<D>;

  const AttendArguments& arguments;
  const Tiles& tiles;
  UnpackShared<D>& shared;
  G geometry;
  Lane lane;
  uint32_t parity = 0;

  __device__ __forceinline__ void make_tables() {
    for (auto i = static_cast<int32_t>(threadIdx.x); i < D * D; i += static_cast<int32_t>(blockDim.x)) {
      const int32_t row = i / D;
      const int32_t channel = i % D;
      shared.plain[row / 16][row % 16][channel] = __float2half_rn(row == channel ? 1.0F : 0.0F);
      shared.rotated[row / 16][row % 16][channel] = __float2half_rn((__popc(row & channel) & 1) != 0 ? -1.0F : 1.0F);
    }
    if (lane.index == 0) make_copy_barrier(shared_address(&shared.arrived[lane.warp]));
    order_before_copies();
    __syncthreads();
  }

  /// Page `item` of all sequences' and heads' tiles in a row.
  __device__ __forceinline__ void run(int32_t item) {
    const int32_t tile = item / kTilePages;
    int32_t sequence = 0;
    while (sequence + 1 < arguments.n_sequences && tiles.begins[sequence + 1] <= tile) ++sequence;
    const int32_t of_sequence = tile - tiles.begins[sequence];
    const int32_t head = of_sequence / tiles.counts[sequence];
    const Unit unit{sequence, tiles.first_head + head, 0};
    const int32_t index = (of_sequence - head * tiles.counts[sequence]) * kTilePages + item % kTilePages;
    const int32_t pages = page_count(arguments, unit);
    const DevicePage* records = pages_of(arguments, unit);
    const DevicePage page = index < pages ? records[index] : DevicePage{};
    const auto place = TilePlace{tiles.keys + tile_bytes(D) * static_cast<size_t>(tile),
                                 tiles.values + tile_bytes(D) * static_cast<size_t>(tile), item % kTilePages * kSlots};
    TileTokens& tokens = tiles.tokens[tile];
    tokens.positions[place.slot + lane.index] =
        lane.index < page.count ? position_in_page(arguments, unit, page, index, lane.index) : INT32_MAX;
    if (place.slot == 0) write_range(unit, index, pages, tokens);
    if (page.count == 0 || is_out_of_sight(unit, index, pages)) {
      clear_page<D>(lane, place);
    } else {
      unpack(page, place);
    }
  }

 private:
  /// `index` is the tile's first page.
  __device__ __forceinline__ void write_range(const Unit& unit, int32_t index, int32_t pages, TileTokens& tokens) {
    const int32_t mine = index + lane.index % kTilePages;
    const DevicePage page = mine < pages ? pages_of(arguments, unit)[mine] : DevicePage{};
    const bool complete = __all_sync(kAll, page.count == kSlots);
    if (lane.index == 0) tokens.first = page.count > 0 ? position_in_page(arguments, unit, page, mine, 0) : INT32_MAX;
    if (lane.index == kTilePages - 1) {
      tokens.last = complete ? position_in_page(arguments, unit, page, mine, kSlots - 1) : INT32_MAX;
    }
  }

  /// Whether the window hides the whole tile of page `index` from all queries.
  __device__ __forceinline__ bool is_out_of_sight(const Unit& unit, int32_t index, int32_t pages) const {
    const AttendSequenceArguments& sequence = sequence_of(arguments, unit);
    const int32_t last = index | (kTilePages - 1);
    if (arguments.window == 0 || sequence.last_position < 0 || last >= pages) return false;
    const int64_t first_query = static_cast<int64_t>(sequence.last_position) - (sequence.query_count - 1);
    const DevicePage page = pages_of(arguments, unit)[last];
    return page.count == kSlots &&
           position_in_page(arguments, unit, page, last, kSlots - 1) <= first_query - arguments.window;
  }

  __device__ __forceinline__ void unpack(const DevicePage& page, const TilePlace& place) {
    const PageLayout layout = layout_of(geometry, FormatCode{page.format});
    const auto* data = reinterpret_cast<const std::byte*>(page.data);
    const bool key_codes = layout.format.keys() != Kind::kFloat16;
    const bool value_codes = layout.format.values() != Kind::kFloat16;
    const uint32_t memory = shared_address(shared.pages[lane.warp]);
    if (key_codes || value_codes) {
      const uint32_t arrived = shared_address(&shared.arrived[lane.warp]);
      __syncwarp();
      start_copy(memory, page.data, layout.bytes, arrived, lane.index, 0);
      wait_copy(arrived, parity);
      parity ^= 1U;
    }
    if (key_codes) {
      const auto side = page_side(geometry, layout, lane, memory);
      const auto& tables = layout.format.hadamard_keys() ? shared.rotated : shared.plain;
      decode_keys(
          side, [&](int32_t pass) -> const auto& { return tables[pass]; },
          [&](const auto& scores, int32_t first_channel) { store_keys<D>(scores, first_channel, lane, place); });
    } else {
      copy_keys<D>(data, lane, place);
    }
    if (value_codes) {
      const auto side = page_side(geometry, layout, lane, memory + static_cast<uint32_t>(layout.values_at));
      decode_values(side, [&](const auto& outputs, int32_t first_token) {
        store_values<D>(outputs, place.slot + first_token, lane, place);
      });
    } else {
      copy_values<D>(data + layout.values_at, lane, place);
    }
  }
};

template <int D>
__global__ void __launch_bounds__(32 * kUnpackWarps, 1)
    unpack_kernel(const __grid_constant__ AttendArguments arguments, const __grid_constant__ Tiles tiles) {
  extern __shared__ __align__(128) uint8_t memory[];
  Unpacker<D> unpacker{
      arguments, tiles, *reinterpret_cast<UnpackShared<D>*>(memory), {arguments.head_dim}, this_lane()};
  unpacker.make_tables();
  const int32_t items = tiles.total * kTilePages;
  const auto warps = static_cast<int32_t>(gridDim.x) * kUnpackWarps;
#pragma unroll 1
  for (auto item = static_cast<int32_t>(blockIdx.x) * kUnpackWarps + unpacker.lane.warp; item < items; item += warps) {
    unpacker.run(item);
  }
}

}  // namespace kvq::cuda
