// Integer pages one number at a time: the arithmetic and the bytes that every backend's encoder must repeat.
#include "core/float16.h"
#include "core/hadamard.h"
#include "formats/float16/layout.h"
#include "formats/integer/integer.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace kvq::integer {
namespace {

/// One group's affine map, with scale and minimum as the page stores them.
struct Quantizer {
  float minimum;
  float inverse_scale;  // 0 for a constant group: every code is 0 and decodes to the minimum
  float top;
  uint16_t scale_bits;
  uint16_t minimum_bits;

  Quantizer(float low, float high, int32_t bits) : top(static_cast<float>((1 << bits) - 1)) {
    // A Hadamard rotation can carry values beyond the range of FP16.
    minimum_bits = to_float16(std::clamp(low, -kMaxFloat16, kMaxFloat16));
    minimum = from_float16(minimum_bits);
    scale_bits = to_float16(std::min((high - minimum) / top, kMaxFloat16));
    const float scale = from_float16(scale_bits);
    inverse_scale = scale > 0.0F ? 1.0F / scale : 0.0F;
  }

  uint32_t code(float value) const {
    const float steps = std::clamp((value - minimum) * inverse_scale, 0.0F, top);
    return static_cast<uint32_t>(steps + 0.5F);
  }
};

/// Codes and scales of one page side, filled group by group.
class Writer {
 public:
  Writer(const Layout& layout, std::byte* out)
      : layout_(layout),
        low_(reinterpret_cast<uint32_t*>(out)),
        high_(reinterpret_cast<uint32_t*>(out + layout.high_offset())),
        scales_(reinterpret_cast<uint16_t*>(out + layout.scale_offset())),
        minima_(reinterpret_cast<uint16_t*>(out + layout.min_offset())) {
    std::memset(out, 0, layout.bytes());
  }

  void set_scale(int32_t index, const Quantizer& quantizer) {
    scales_[index] = quantizer.scale_bits;
    minima_[index] = quantizer.minimum_bits;
  }
  void set_code(int32_t slot, int32_t channel, uint32_t code) {
    const int32_t lane = layout_.side == Side::kKeys ? slot : channel;
    const int32_t element = layout_.side == Side::kKeys ? channel : slot;
    if (layout_.bits == 3) {
      layout_.low_plane().put(low_, lane, element, code & 3U);
      layout_.high_plane().put(high_, lane, element, code >> 2U);
    } else {
      layout_.low_plane().put(low_, lane, element, code);
    }
  }

 private:
  Layout layout_;
  uint32_t* low_;
  uint32_t* high_;
  uint16_t* scales_;
  uint16_t* minima_;
};

void encode_keys(const Layout& layout, const float* rows, std::byte* out) {
  Writer writer(layout, out);
  for (int32_t channel = 0; channel < layout.head_dim; ++channel) {
    float low = rows[channel];
    float high = rows[channel];
    for (int32_t slot = 1; slot < kPageSlots; ++slot) {
      const float value = rows[slot * layout.head_dim + channel];
      low = std::min(low, value);
      high = std::max(high, value);
    }
    const Quantizer quantizer(low, high, layout.bits);
    writer.set_scale(channel, quantizer);
    for (int32_t slot = 0; slot < kPageSlots; ++slot) {
      writer.set_code(slot, channel, quantizer.code(rows[slot * layout.head_dim + channel]));
    }
  }
}

void encode_values(const Layout& layout, const float* rows, std::byte* out) {
  Writer writer(layout, out);
  for (int32_t slot = 0; slot < kPageSlots; ++slot) {
    const float* row = rows + slot * layout.head_dim;
    for (int32_t begin = 0; begin < layout.head_dim; begin += layout.group) {
      const int32_t end = std::min(begin + layout.group, layout.head_dim);
      const auto [low, high] = std::minmax_element(row + begin, row + end);
      const Quantizer quantizer(*low, *high, layout.bits);
      writer.set_scale(layout.scale_index(slot, begin), quantizer);
      for (int32_t channel = begin; channel < end; ++channel) {
        writer.set_code(slot, channel, quantizer.code(row[channel]));
      }
    }
  }
}

}  // namespace

void encode(const SideToEncode& side) {
  const int32_t head_dim = side.format.head_dim;
  const SideFormat& format = side.format.side(side.side);
  std::array<float, static_cast<size_t>(kPageSlots * kMaxHeadDim)> rows;  // [slots, head_dim]
  const auto* halves = reinterpret_cast<const uint16_t*>(side.float16.front());
  for (int32_t slot = 0; slot < kPageSlots; ++slot) {
    float* row = rows.data() + static_cast<ptrdiff_t>(slot) * head_dim;
    for (int32_t channel = 0; channel < head_dim; ++channel) {
      row[channel] = from_float16(halves[float16::index(side.side, head_dim, slot, channel)]);
    }
    if (format.hadamard) hadamard(row, head_dim);
  }
  const Layout where = layout(side.side, format, head_dim);
  if (side.side == Side::kKeys) {
    encode_keys(where, rows.data(), side.out.front());
  } else {
    encode_values(where, rows.data(), side.out.front());
  }
}

}  // namespace kvq::integer
