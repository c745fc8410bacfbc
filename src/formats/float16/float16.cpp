#include "formats/float16/float16.h"

#include <algorithm>
#include <cstring>

namespace kvq::float16 {

void write_slot(Side side, int32_t head_dim, int32_t slot, const float* channels, std::byte* plane) noexcept {
  auto* halves = reinterpret_cast<uint16_t*>(plane);
  for (int32_t channel = 0; channel < head_dim; ++channel) {
    halves[index(side, head_dim, slot, channel)] = to_finite_float16(channels[channel]);
  }
}

void clear_slots(Side side, int32_t head_dim, int32_t begin, int32_t end, std::byte* plane) {
  auto* numbers = reinterpret_cast<uint16_t*>(plane);
  for (int32_t slot = begin; slot < end; ++slot) {
    for (int32_t channel = 0; channel < head_dim; ++channel) numbers[index(side, head_dim, slot, channel)] = 0;
  }
}

void compact(const PageFormat& format, std::span<std::byte* const> pages, std::span<const int32_t> slots,
             int32_t first) noexcept {
  for (const Side side : {Side::kKeys, Side::kValues}) {
    const int32_t dim = format.head.of(side);
    const size_t offset = format.offset(side);
    const auto plane_of = [&](int32_t slot) {
      return reinterpret_cast<uint16_t*>(pages[static_cast<size_t>(slot / kPageSlots)] + offset);
    };
    for (size_t i = 0; i < slots.size(); ++i) {
      const int32_t to = first + static_cast<int32_t>(i);
      const uint16_t* source = plane_of(slots[i]);
      uint16_t* target = plane_of(to);
      for (int32_t channel = 0; channel < dim; ++channel) {
        target[index(side, dim, to % kPageSlots, channel)] = source[index(side, dim, slots[i] % kPageSlots, channel)];
      }
    }
  }
}

void read_row(const SideToEncode& side, int32_t slot, float* row) {
  const int32_t dim = side.format.head.of(side.side);
  const auto* numbers = reinterpret_cast<const uint16_t*>(side.float16.front());
  for (int32_t i = 0; i < dim; ++i) row[i] = from_float16(numbers[index(side.side, dim, slot, i)]);
}

size_t bytes(Side side, const PageFormat& format) { return plane(side, format.head.of(side)).bytes(); }

void encode(const SideToEncode& side) {
  std::memcpy(side.out.front(), side.float16.front(), bytes(side.side, side.format));
}

void decode(const EncodedSide& encoded, int32_t begin, int32_t n, float* out) {
  const auto* numbers = reinterpret_cast<const uint16_t*>(encoded.sides[encoded.head]);
  const int32_t head_dim = encoded.format.head.of(encoded.side);
  for (int32_t slot = begin; slot < begin + n; ++slot) {
    for (int32_t channel = 0; channel < head_dim; ++channel) {
      *out++ = from_float16(numbers[index(encoded.side, head_dim, slot, channel)]);
    }
  }
}

bool valid(Side side, const PageFormat& format, const std::byte* data) {
  const auto* numbers = reinterpret_cast<const uint16_t*>(data);
  return std::all_of(numbers, numbers + bytes(side, format) / 2, is_finite_float16);
}

}  // namespace kvq::float16
