#include "codecs.h"

#include "core/error.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <iterator>

namespace kvq::cuda {
namespace {

constexpr int32_t kChunk = 16;

// The kinds of sides that the append kernels encode and the attention kernels read. Whatever is not here is refused.
constexpr Kind kKnown[] = {Kind::kFloat16, Kind::kInt8, Kind::kInt4, Kind::kInt3, Kind::kInt2};
static_assert(std::all_of(std::begin(kKnown), std::end(kKnown), [](Kind kind) { return index_of(kind) < 8; }),
              "a FormatCode has three bits for a kind");

bool is_known(const SideFormat& format) {
  return std::find(std::begin(kKnown), std::end(kKnown), format.kind) != std::end(kKnown);
}

uint32_t side_code(const SideFormat& format) {
  if (!is_known(format)) fail(KVQ_E_INTERNAL, "kernels know no pages of kind %d", static_cast<int>(format.kind));
  return static_cast<uint32_t>(format.kind) | (format.hadamard ? 8U : 0U);
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

bool knows(const PageFormat& format) { return is_known(format.keys) && is_known(format.values); }

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
