// Decodes pages of any kind to FP16 tiles.
#pragma once

#include "kernels/attend/ring.cuh"
#include "kernels/pages/decode.cuh"
#include "kernels/prefill/prefill.h"

#include <algorithm>

namespace kvq::cuda {

constexpr int32_t kUnpackWarps = 8;

/// All kinds of pages, 16 rows per pass.
template <int D>
using UnpackGeometry = Geometry<D, true, 2, Lists::kGains>;

/// Bytes of the largest side in codes, and of the largest page whose sides' bytes are mixed.
template <int D>
inline constexpr int32_t kLargestCodes = std::max(
    {full_places(Side::kKeys, CodeType::integer(8), D).bytes, full_places(Side::kValues, CodeType::integer(8), D).bytes,
     page_places(FormatCode{FormatCode::both(CodeType::gain_scalar(4)).bits | 1U << FormatCode::kPageMeanBit}, D)
         .bytes});

template <int D>
struct UnpackShared {
  using Rows = __half[16][D + 8];

  alignas(16) Rows plain[D / 16];    // unit matrix
  alignas(16) Rows rotated[D / 16];  // signs of a Hadamard matrix
  alignas(128) uint8_t sides[kUnpackWarps][(kLargestCodes<D> + kOverrun + 127) / 128 * 128];
  alignas(128) std::byte made[kUnpackWarps][2 * kSlots * D];  // a decoded side of a page in tile layout
  uint64_t arrived[kUnpackWarps];
};

/// Offset of the chunk with eight channels of a token's key, in planes of 64 channels with one row per token.
__device__ __forceinline__ int32_t key_chunk_at(int32_t slot, int32_t channel) {
  return (channel / 64 * kSlots + slot) * 128 + ((channel / 8 % 8) ^ (slot & 7)) * 16;
}
/// Offset of the chunk with a channel's values of eight tokens, with one row per channel.
__device__ __forceinline__ int32_t value_chunk_at(int32_t slot, int32_t channel) {
  return channel * 64 + ((slot / 8) ^ (channel / 2 & 3)) * 16;
}

__device__ __forceinline__ void store_keys(const Scores<2>& scores, int32_t first_channel, const Lane& lane,
                                           std::byte* to) {
#pragma unroll
  for (int32_t tile = 0; tile < 4; ++tile) {
    const int32_t slot = token_of(lane.g, tile);
#pragma unroll
    for (int32_t n = 0; n < 2; ++n) {
      const float(&two)[4] = scores[n][tile / 2];
      const int32_t at = key_chunk_at(slot, first_channel + 8 * n) + 4 * lane.t;
      *reinterpret_cast<uint32_t*>(to + at) = pack_finite(two[2 * (tile % 2)], two[2 * (tile % 2) + 1]);
    }
  }
}

template <int D>
__device__ __forceinline__ void store_values(const Outputs<UnpackGeometry<D>>& outputs, int32_t first_token,
                                             const Lane& lane, std::byte* to) {
#pragma unroll
  for (int32_t n = 0; n < 2; ++n) {
#pragma unroll
    for (int32_t m = 0; m < D / 32; ++m) {
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        const float(&four)[4] = outputs.channels[n][m][i / 2];
        const int32_t at = value_chunk_at(first_token + 8 * n, 32 * m + 4 * lane.g + i) + 4 * lane.t;
        *reinterpret_cast<uint32_t*>(to + at) = pack_finite(four[2 * (i % 2)], four[2 * (i % 2) + 1]);
      }
    }
  }
}

/// Copies FP16 keys from device memory, one token per lane.
template <int D>
__device__ __forceinline__ void copy_keys(const std::byte* keys, const Lane& lane, std::byte* to) {
#pragma unroll 8
  for (int32_t chunk = 0; chunk < D / 8; ++chunk) {
    uint32_t words[4];
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      const int32_t at = key_chunk(CodeType::float16(), (4 * chunk + i) * 8 + lane.index / 4);
      words[i] = __ldg(reinterpret_cast<const uint32_t*>(keys + at * 16) + lane.index % 4);
    }
    *reinterpret_cast<uint4*>(to + key_chunk_at(lane.index, 8 * chunk)) = {words[0], words[1], words[2], words[3]};
  }
}

/// Copies FP16 values from device memory, one channel per lane.
template <int D>
__device__ __forceinline__ void copy_values(const std::byte* values, const Lane& lane, std::byte* to) {
#pragma unroll
  for (int32_t channel = lane.index; channel < D; channel += 32) {
#pragma unroll
    for (int32_t chunk = 0; chunk < kSlots / 8; ++chunk) {
      uint32_t words[4];
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        const int32_t at = value_chunk(CodeType::float16(), D, (4 * chunk + i) * (D / 4) + channel / 4);
        words[i] = __ldg(reinterpret_cast<const uint32_t*>(values + at * 16) + channel % 4);
      }
      *reinterpret_cast<uint4*>(to + value_chunk_at(8 * chunk, channel)) = {words[0], words[1], words[2], words[3]};
    }
  }
}

/// Starts a warp's copy to device memory, after all lanes have written their part.
__device__ __forceinline__ void start_store(std::byte* to, const std::byte* from, int32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n" ::"l"(__cvta_generic_to_global(to)),
               "r"(shared_address(from)), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void commit_stores() { asm volatile("cp.async.bulk.commit_group;\n" ::: "memory"); }
/// Wait until the copies have read shared memory, or have completed.
__device__ __forceinline__ void wait_stores_read() { asm volatile("cp.async.bulk.wait_group.read 0;\n" ::: "memory"); }
__device__ __forceinline__ void wait_stores() { asm volatile("cp.async.bulk.wait_group 0;\n" ::: "memory"); }

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

  /// Decodes one side of page `item / 2`, counted over the tiles of all sequences and heads; even items are keys.
  __device__ __forceinline__ void run(int32_t item) {
    const Side side = item % 2 == 0 ? Side::kKeys : Side::kValues;
    item /= 2;
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
    const int32_t slot = item % kTilePages * kSlots;  // the page's first slot in the tile
    std::byte* made = shared.made[lane.warp];
    if (lane.index == 0) wait_stores_read();
    __syncwarp();
    if (side == Side::kKeys) {
      TileTokens& tokens = tiles.tokens[tile];
      tokens.positions[slot + lane.index] =
          lane.index < page.count() ? position_in_page(arguments, unit, page, index, lane.index) : INT32_MAX;
      if (slot == 0) write_range(unit, index, pages, tokens);
    }
    if (page.count() == 0 || is_out_of_sight(unit, index, pages)) {
      // Zeros, because products with weight 0 still read the page.
      for (int32_t i = 16 * lane.index; i < 2 * kSlots * D; i += 16 * 32) {
        *reinterpret_cast<uint4*>(made + i) = {0, 0, 0, 0};
      }
    } else if (side == Side::kKeys) {
      unpack_keys(page, made);
    } else {
      unpack_values(page, made);
    }
    order_before_copies();
    __syncwarp();
    if (lane.index != 0) return;
    const size_t at = tile_bytes(D) * static_cast<size_t>(tile);
    if (side == Side::kKeys) {
#pragma unroll
      for (int32_t plane = 0; plane < D / 64; ++plane) {
        start_store(tiles.keys + at + (plane * kTileTokens + slot) * 128, made + plane * kSlots * 128, kSlots * 128);
      }
    } else {
      start_store(tiles.values + at + slot * D * 2, made, 2 * kSlots * D);
    }
    commit_stores();
  }

 private:
  /// `index`: first page of the tile.
  __device__ __forceinline__ void write_range(const Unit& unit, int32_t index, int32_t pages, TileTokens& tokens) {
    const int32_t mine = index + lane.index % kTilePages;
    const DevicePage page = mine < pages ? pages_of(arguments, unit)[mine] : DevicePage{};
    const bool complete = __all_sync(kAll, page.count() == kSlots);
    if (lane.index == 0) tokens.first = page.count() > 0 ? position_in_page(arguments, unit, page, mine, 0) : INT32_MAX;
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
    return page.count() == kSlots &&
           position_in_page(arguments, unit, page, last, kSlots - 1) <= first_query - arguments.window;
  }

  /// Copies a side that begins `at` bytes into a page to shared memory, and returns its shared address.
  __device__ __forceinline__ uint32_t load_side(const DevicePage& page, const PageLayout& layout, int32_t at,
                                                int32_t bytes) {
    const bool mixed = layout.format.both_have_gains();
    const uint32_t memory = shared_address(shared.sides[lane.warp]);
    const uint32_t arrived = shared_address(&shared.arrived[lane.warp]);
    __syncwarp();
    start_copy(memory, page.data + static_cast<uint64_t>(mixed ? 0 : at), mixed ? layout.bytes : bytes, arrived,
               lane.index, 0);
    wait_copy(arrived, parity);
    parity ^= 1U;
    return memory + static_cast<uint32_t>(mixed ? at : 0);
  }

  __device__ __forceinline__ void unpack_keys(const DevicePage& page, std::byte* made) {
    const PageLayout layout = layout_of(geometry, FormatCode{page.format()});
    if (layout.format.keys().is_float16()) {
      return copy_keys<D>(reinterpret_cast<const std::byte*>(page.data), lane, made);
    }
    const auto& tables = layout.format.hadamard_keys() ? shared.rotated : shared.plain;
    decode_keys(
        page_side(geometry, layout, lane, load_side(page, layout, 0, layout.keys.bytes)),
        [&](int32_t pass) -> const auto& { return tables[pass]; },
        [&](const auto& scores, int32_t first_channel) { store_keys(scores, first_channel, lane, made); });
  }

  __device__ __forceinline__ void unpack_values(const DevicePage& page, std::byte* made) {
    const PageLayout layout = layout_of(geometry, FormatCode{page.format()});
    if (layout.format.values().is_float16()) {
      return copy_values<D>(reinterpret_cast<const std::byte*>(page.data) + layout.values_at, lane, made);
    }
    decode_values(page_side(geometry, layout, lane, load_side(page, layout, layout.values_at, layout.values.bytes)),
                  [&](const auto& outputs, int32_t first_token) { store_values<D>(outputs, first_token, lane, made); });
  }
};

template <int D>
__global__ void __launch_bounds__(32 * kUnpackWarps, 1)
    unpack_kernel(const __grid_constant__ AttendArguments arguments, const __grid_constant__ Tiles tiles) {
  extern __shared__ __align__(128) uint8_t memory[];
  Unpacker<D> unpacker{
      arguments, tiles, *reinterpret_cast<UnpackShared<D>*>(memory), {arguments.head_dim}, this_lane()};
  unpacker.make_tables();
  const int32_t items = 2 * kTilePages * tiles.total;
  const auto warps = static_cast<int32_t>(gridDim.x) * kUnpackWarps;
#pragma unroll 1
  for (auto item = static_cast<int32_t>(blockIdx.x) * kUnpackWarps + unpacker.lane.warp; item < items; item += warps) {
    unpacker.run(item);
  }
  if (unpacker.lane.index == 0) wait_stores();
}

}  // namespace kvq::cuda
