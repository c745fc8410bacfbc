// Layout of a page, and a lane's loads from its copy in shared memory.
#pragma once

#include "kernels/pages/math.cuh"

#include <concepts>

namespace kvq::cuda {

/// A format and its places.
struct PageLayout : PagePlaces {
  FormatCode format;
  int32_t group_shift;
};

template <typename G>
__device__ __forceinline__ PageLayout layout_of(const G& geometry, FormatCode format) {
  return {page_places(format, geometry.head_dim()), format, format.group_shift()};
}

/// A type that represents one kind of pages.
template <typename K>
concept PageKind = requires {
  { K::kCode } -> std::convertible_to<CodeType>;
};

/// Maps a code type to its page kind: a specialization per code of known_codes.h, with a member Type.
template <CodeType kCode>
struct PageTypeOf;

/// Places of keys of kind K, or of any kind; compile-time constants for a known kind and head size.
template <typename K, typename G>
__device__ __forceinline__ SidePlaces key_bytes_of(const PageLayout& layout) {
  if constexpr (G::kExact && PageKind<K>) {
    constexpr SidePlaces kBytes = side_places(Side::kKeys, K::kCode, G::kWidth);
    return kBytes;
  }
  return layout.keys;
}

/// Offset of values in pages with kind K on both sides.
template <typename K, typename G>
__device__ __forceinline__ int32_t values_at(const PageLayout& layout) {
  if constexpr (G::kExact && PageKind<K>) {
    constexpr int32_t kAt = page_places(FormatCode::both(K::kCode), G::kWidth).values_at;
    return kAt;
  }
  return layout.values_at;
}

/// Bytes of codes of values of kind K.
template <typename K, typename G>
__device__ __forceinline__ int32_t value_codes_of(const PageLayout& layout) {
  if constexpr (G::kExact) {
    constexpr int32_t kBytes = side_places(Side::kValues, K::kCode, G::kWidth).codes;
    return kBytes;
  }
  return layout.values.codes;
}

template <typename T>
__device__ inline T load_shared(uint32_t address);
template <>
__device__ inline uint32_t load_shared<uint32_t>(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];\n" : "=r"(v) : "r"(address));
  return v;
}
template <>
__device__ inline uint2 load_shared<uint2>(uint32_t address) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];\n" : "=r"(v.x), "=r"(v.y) : "r"(address));
  return v;
}
template <>
__device__ inline uint4 load_shared<uint4>(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];\n" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address));
  return v;
}

__device__ __forceinline__ void to_array(const uint4& from, uint32_t (&to)[4]) {
  to[0] = from.x;
  to[1] = from.y;
  to[2] = from.z;
  to[3] = from.w;
}

/// One side of a page in shared memory, as a lane reads it.
template <typename G>
struct PageSide {
  const G& geometry;
  const PageLayout& layout;
  Lane lane;
  uint32_t address;
};

template <typename G>
__device__ __forceinline__ PageSide<G> page_side(const G& geometry, const PageLayout& layout, const Lane& lane,
                                                 uint32_t address) {
  return {geometry, layout, {lane.warps, lane.warp, lane.index, lane.g, opaque(lane.t)}, address};
}

/// Loads key words of the lane's tokens at `row`: of tiles 0 and 1, then of tiles 2 and 3.
template <typename G>
__device__ __forceinline__ void load_key_words(const PageSide<G>& side, int32_t row, int32_t swizzle,
                                               uint32_t (&words)[4]) {
  const int32_t column = 2 * (side.lane.g >> 1);
  const uint32_t line = side.address + static_cast<uint32_t>(8 * (side.lane.g & 1)) + static_cast<uint32_t>(row * 128);
  const auto low = load_shared<uint2>(line + static_cast<uint32_t>((column ^ swizzle) * 16));
  const auto high = load_shared<uint2>(line + static_cast<uint32_t>(((column + 1) ^ swizzle) * 16));
  words[0] = low.x;
  words[1] = low.y;
  words[2] = high.x;
  words[3] = high.y;
}

/// Loads value words of the lane's four channels of block m at `row`.
template <typename G>
__device__ __forceinline__ uint4 load_value_words(const PageSide<G>& side, int32_t row, int32_t swizzle, int32_t m) {
  const int32_t head_dim = side.geometry.head_dim();
  const int32_t column = (8 * m + side.lane.g) ^ (G::kExact || swizzles_values(head_dim) ? swizzle : 0);
  const int32_t chunk = row * (value_lanes(head_dim) / 4) + column;
  return load_shared<uint4>(side.address + static_cast<uint32_t>(chunk * 16));
}

}  // namespace kvq::cuda
