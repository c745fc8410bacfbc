#include "page_order.h"

#include <cstring>
#include <initializer_list>

namespace kvq::cuda {
namespace {

constexpr int32_t kChunk = 16;

Kind kind_of(const SideFormat& format) {
  if (format.codec == Codec::kFloat16) return Kind::kFloat16;
  switch (format.bits) {
    case 8:
      return Kind::kInt8;
    case 4:
      return Kind::kInt4;
    case 3:
      return Kind::kInt3;
    default:
      return Kind::kInt2;
  }
}

uint32_t side_code(const SideFormat& format) {
  return static_cast<uint32_t>(kind_of(format)) | (format.hadamard ? 8U : 0U);
}

/// `place_of` gives a chunk's place.
template <typename PlaceOf>
void swap_side(const SideBytes& bytes, const std::byte* from, std::byte* to, const PlaceOf& place_of) {
  for (int32_t i = 0; i < bytes.codes / kChunk; ++i) {
    std::memcpy(to + static_cast<ptrdiff_t>(place_of(i)) * kChunk, from + static_cast<ptrdiff_t>(i) * kChunk, kChunk);
  }
  for (const int32_t plane : {bytes.codes, bytes.minima_offset()}) {
    for (int32_t i = 0; i < bytes.scales / 2; ++i) {
      std::memcpy(to + plane + 2 * scale_place(i), from + plane + 2 * i, 2);
    }
  }
  const int32_t used = bytes.codes + 2 * bytes.scales;
  std::memcpy(to + used, from + used, static_cast<size_t>(bytes.bytes() - used));
}

}  // namespace

FormatCode format_code(const PageFormat& format) {
  const uint32_t shift = format.values.group == 128 ? 2U : (format.values.group == 64 ? 1U : 0U);
  return {side_code(format.keys) | side_code(format.values) << 4U | shift << 8U};
}

void swap_order(const PageFormat& format, const std::byte* from, std::byte* to) {
  const FormatCode code = format_code(format);
  const int32_t head_dim = format.head_dim;
  swap_side(key_bytes(code.keys(), head_dim), from, to, [&](int32_t i) { return key_chunk(code.keys(), i); });
  swap_side(value_bytes(code.values(), code.group_shift(), head_dim), from + format.key_bytes(),
            to + format.key_bytes(), [&](int32_t i) { return value_chunk(code.values(), head_dim, i); });
}

}  // namespace kvq::cuda
