#include "formats/integer/integer.h"

#include "core/float16.h"

#include <algorithm>

namespace kvq::integer {

size_t bytes(Side side, const PageFormat& format) { return layout(side, format).bytes(); }

void decode(const EncodedSide& encoded, int32_t begin, int32_t n, float* out) {
  const Side side = encoded.side;
  const int32_t head_dim = encoded.format.head_dim;
  const std::byte* data = encoded.sides[encoded.head];
  const SideLayout where = layout(side, encoded.format);
  const auto* low = reinterpret_cast<const uint32_t*>(data);
  const auto* high = reinterpret_cast<const uint32_t*>(data + where.high_offset());
  const auto* scales = reinterpret_cast<const uint16_t*>(data + where.scale_offset());
  const auto* minima = reinterpret_cast<const uint16_t*>(data + where.minimum_offset());
  for (int32_t slot = begin; slot < begin + n; ++slot) {
    for (int32_t channel = 0; channel < head_dim; ++channel) {
      const int32_t lane = side == Side::kKeys ? slot : channel;
      const int32_t element = side == Side::kKeys ? channel : slot;
      uint32_t code = where.low_plane().get(low, lane, element);
      if (where.bits() == 3) code |= where.high_plane().get(high, lane, element) << 2U;
      const auto index = static_cast<size_t>(where.scale_index(slot, channel));
      *out++ = static_cast<float>(code) * from_float16(scales[index]) + from_float16(minima[index]);
    }
  }
}

bool valid(Side side, const PageFormat& format, const std::byte* data) {
  const SideLayout where = layout(side, format);
  const auto* numbers = reinterpret_cast<const uint16_t*>(data + where.scale_offset());
  return std::all_of(numbers, numbers + 2 * where.scales(), is_finite_float16);
}

}  // namespace kvq::integer
