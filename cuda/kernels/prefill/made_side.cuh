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

  /// Loads eight channels of FP16 keys of the lane's token. `read`: returns the word at an offset of the side.
  template <typename Read>
  __device__ __forceinline__ void load_key_words(const Read& read, int32_t chunk, uint32_t (&words)[4]) const {
    // key_chunk of (4 · chunk + i) · 8 + lane / 4, whose permutation depends on the chunk's parity and on i.
    const int32_t column = lane.index / 4 ^ (chunk & 1) << 2;
    const int32_t at[2] = {16 * column + lane.index % 4 * 4, 16 * (column ^ 1) + lane.index % 4 * 4};
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) words[i] = read(at[i / 2] + 128 * i + 512 * chunk);
  }
  __device__ __forceinline__ void store_key_words(int32_t chunk, const uint32_t (&words)[4]) const {
    *reinterpret_cast<uint4*>(memory + key_at(lane.index, 8 * chunk)) = {words[0], words[1], words[2], words[3]};
  }
  template <typename Read>
  __device__ __forceinline__ void copy_keys(const Read& read) const {
#pragma unroll 8
    for (int32_t chunk = share.first; chunk < geometry.head_dim() / 8; chunk += share.step) {
      uint32_t words[4];
      load_key_words(read, chunk, words);
      store_key_words(chunk, words);
    }
  }

  /// Where a lane's FP16 values are, eight tokens of four channels in each block of 32, and where they go. Swizzles
  /// depend on lower bits of channels, so blocks are a constant distance apart.
  struct ValuePlaces {
    int32_t from;
    int32_t row_bytes;
    int32_t to[2];  // of the first two channels, and of the other two
  };
  __device__ __forceinline__ ValuePlaces value_places() const {
    const int32_t head_dim = geometry.head_dim();
    const int32_t chunk = lane.index % 4;
    const int32_t fours = lane.index / 4;
    const int32_t swizzle = swizzles_values(head_dim) ? value_swizzle(CodeType::float16(), head_dim, 4 * chunk) : 0;
    const int32_t row_bytes = value_lanes(head_dim) * 4;
    return {4 * chunk * row_bytes + 16 * (fours ^ swizzle),
            row_bytes,
            {value_chunk_at(8 * chunk, 4 * fours), value_chunk_at(8 * chunk, 4 * fours + 2)}};
  }
  /// Loads a block's words, of four pairs of tokens and four channels. `read`: returns the chunk at an offset of the
  /// side.
  template <typename Read>
  __device__ __forceinline__ void load_value_words(const Read& read, const ValuePlaces& at, int32_t block,
                                                   uint32_t (&words)[4][4]) const {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) to_array(read(at.from + 128 * block + i * at.row_bytes), words[i]);
  }
  __device__ __forceinline__ void store_value_words(const ValuePlaces& at, int32_t block,
                                                    const uint32_t (&words)[4][4]) const {
#pragma unroll
    for (int32_t c = 0; c < 4; ++c) {
      std::byte* to = memory + at.to[c / 2] + 64 * (32 * block + c % 2);
      *reinterpret_cast<uint4*>(to) = {words[0][c], words[1][c], words[2][c], words[3][c]};
    }
  }
  /// Whether a block has the lane's channels.
  __device__ __forceinline__ bool has_values(int32_t block) const {
    return 32 * block + 4 * (lane.index / 4) < geometry.head_dim();
  }
  template <typename Read>
  __device__ __forceinline__ void copy_values(const Read& read) const {
    const ValuePlaces at = value_places();
#pragma unroll 2
    for (int32_t block = share.first; has_values(block); block += share.step) {
      uint32_t words[4][4];
      load_value_words(read, at, block, words);
      store_value_words(at, block, words);
    }
  }
};

}  // namespace kvq::cuda
