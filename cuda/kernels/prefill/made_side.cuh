// Decoded sides of pages in the layout of tiles.
#pragma once

#include "kernels/pages/stored_values.cuh"
#include "kernels/prefill/tiles.cuh"

namespace kvq::cuda {

/// A decoded side of a page in shared memory: `width` channels, of which those from the geometry's head size on are
/// zeros.
template <typename G>
struct MadeSide {
  const G& geometry;
  int32_t width;
  Lane lane;
  std::byte* memory;
  SideShare share{};  // of the side, that this warp makes

  __device__ __forceinline__ int32_t plane() const {
    if constexpr (G::kWidth > kMaxHeadDim) return 64;  // of whole planes
    return G::kExact ? plane_channels(G::kWidth) : plane_channels(width);
  }
  __device__ __forceinline__ int32_t key_at(int32_t slot, int32_t channel) const {
    return plane_chunk_at(plane(), kSlots, slot, channel);
  }
  __device__ __forceinline__ void clear_chunk(int32_t at) const {
    *reinterpret_cast<uint4*>(memory + at) = {0, 0, 0, 0};
  }
  /// Zeros, because products with weight 0 still read the side.
  __device__ __forceinline__ void clear() const {
    for (int32_t i = 16 * lane.index; i < 2 * kSlots * width; i += 16 * 32) clear_chunk(i);
  }
  __device__ __forceinline__ void pad_keys() const {
    for (int32_t channel = geometry.head_dim(); channel < width; channel += 8) clear_chunk(key_at(lane.index, channel));
  }
  __device__ __forceinline__ void pad_values() const {
    for (int32_t i = 64 * geometry.head_dim() + 16 * lane.index; i < 64 * width; i += 16 * 32) clear_chunk(i);
  }

  /// Decodes codes as they are stored.
  __device__ __forceinline__ void decode_keys(const PageSide<G>& keys) const {
    decode_stored_keys(
        keys,
        [this](int32_t tile, int32_t channel, const uint2& four) {
          const int32_t at = key_at(token_of(lane.g, tile), channel) + channel % 8 * 2;
          *reinterpret_cast<uint2*>(memory + at) = four;
        },
        share);
  }
  __device__ __forceinline__ void decode_values(const PageSide<G>& values) const {
    decode_stored_values(
        values,
        [this](int32_t channel, const uint4& eight) {
          *reinterpret_cast<uint4*>(memory + value_chunk_at(8 * lane.t, channel)) = eight;
        },
        share);
  }

  /// Copies FP16 keys, one token per lane. `read`: returns the word at an offset of the side.
  template <typename Read>
  __device__ __forceinline__ void copy_keys(const Read& read) const {
#pragma unroll 8
    for (int32_t chunk = share.first; chunk < geometry.head_dim() / 8; chunk += share.step) {
      uint32_t words[4];
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        const int32_t at = key_chunk(CodeType::float16(), (4 * chunk + i) * 8 + lane.index / 4);
        words[i] = read(at * 16 + lane.index % 4 * 4);
      }
      *reinterpret_cast<uint4*>(memory + key_at(lane.index, 8 * chunk)) = {words[0], words[1], words[2], words[3]};
    }
  }

  /// Copies FP16 values, eight tokens of four channels per lane. `read`: returns the chunk at an offset of the side.
  template <typename Read>
  __device__ __forceinline__ void copy_values(const Read& read) const {
    const int32_t head_dim = geometry.head_dim();
    const int32_t row_chunks = value_lanes(head_dim) / 4;
    const bool swizzles = swizzles_values(head_dim);
#pragma unroll 2
    for (int32_t item = 32 * share.first + lane.index; item < head_dim; item += 32 * share.step) {
      const int32_t fours = item / 4;
      const int32_t chunk = item % 4;
      const int32_t column = fours ^ (swizzles ? value_swizzle(CodeType::float16(), head_dim, 4 * chunk) : 0);
      uint32_t words[4][4];
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) to_array(read(((4 * chunk + i) * row_chunks + column) * 16), words[i]);
#pragma unroll
      for (int32_t c = 0; c < 4; ++c) {
        *reinterpret_cast<uint4*>(memory + value_chunk_at(8 * chunk, 4 * fours + c)) = {words[0][c], words[1][c],
                                                                                        words[2][c], words[3][c]};
      }
    }
  }
};

}  // namespace kvq::cuda
