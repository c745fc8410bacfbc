#include "formats/integer/integer.h"

#include "core/float16.h"
#include "core/head_rotation.h"
#include "formats/float16/float16.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace kvq::integer {
namespace {

/// One group's affine map, with scale and minimum as stored in the page.
struct Quantizer {
  float minimum;
  float inverse_scale;  // 0 for a constant group: every code is 0 and decodes to the minimum
  float top;
  uint16_t scale_bits;
  uint16_t minimum_bits;

  Quantizer(float low, float high, int32_t bits) : top(static_cast<float>((1 << bits) - 1)) {
    // A Hadamard rotation can push values beyond the range of FP16.
    minimum_bits = to_finite_float16(low);
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
  Writer(const SideLayout& layout, std::byte* out)
      : layout_(layout),
        low_(reinterpret_cast<uint32_t*>(out)),
        high_(reinterpret_cast<uint32_t*>(out + layout.high_offset())),
        scales_(reinterpret_cast<uint16_t*>(out + layout.scale_offset())),
        minima_(reinterpret_cast<uint16_t*>(out + layout.minimum_offset())) {
    std::memset(out, 0, layout.bytes());
  }

  void set_scale(int32_t index, const Quantizer& quantizer) {
    scales_[index] = quantizer.scale_bits;
    minima_[index] = quantizer.minimum_bits;
  }
  void set_code(int32_t slot, int32_t channel, uint32_t code) {
    const int32_t lane = layout_.side == Side::kKeys ? slot : channel;
    const int32_t element = layout_.side == Side::kKeys ? channel : slot;
    if (layout_.bits() == 3) {
      layout_.low_plane().put(low_, lane, element, code & 3U);
      layout_.high_plane().put(high_, lane, element, code >> 2U);
    } else {
      layout_.low_plane().put(low_, lane, element, code);
    }
  }

 private:
  SideLayout layout_;
  uint32_t* low_;
  uint32_t* high_;
  uint16_t* scales_;
  uint16_t* minima_;
};

void read_row(const SideToEncode& side, int32_t slot, float* row) {
  float16::read_row(side, slot, row);
  if (side.format.side(side.side).is_rotated()) rotate_head(row, side.format.head.of(side.side));
}

/// Chunks of channels: a whole page is too large for some stacks.
void encode_keys(const SideToEncode& side, const SideLayout& layout) {
  constexpr int32_t kChannels = 64;
  Writer writer(layout, side.out.front());
  std::array<float, kMaxHeadDim> row;
  std::array<float, static_cast<size_t>(kPageSlots * kChannels)> columns;  // [channels][slots]
  for (int32_t begin = 0; begin < layout.head_dim; begin += kChannels) {
    const int32_t end = std::min(begin + kChannels, layout.head_dim);
    for (int32_t slot = 0; slot < kPageSlots; ++slot) {
      read_row(side, slot, row.data());
      for (int32_t channel = begin; channel < end; ++channel) {
        columns[static_cast<size_t>((channel - begin) * kPageSlots + slot)] = row[static_cast<size_t>(channel)];
      }
    }
    for (int32_t channel = begin; channel < end; ++channel) {
      const float* column = columns.data() + static_cast<ptrdiff_t>(channel - begin) * kPageSlots;
      // The first of equal numbers: zeros have signs.
      const float low = *std::min_element(column, column + kPageSlots);
      const float high = *std::max_element(column, column + kPageSlots);
      const Quantizer quantizer(low, high, layout.bits());
      writer.set_scale(channel, quantizer);
      for (int32_t slot = 0; slot < kPageSlots; ++slot) writer.set_code(slot, channel, quantizer.code(column[slot]));
    }
  }
}

void encode_values(const SideToEncode& side, const SideLayout& layout) {
  Writer writer(layout, side.out.front());
  std::array<float, kMaxHeadDim> row;
  for (int32_t slot = 0; slot < kPageSlots; ++slot) {
    read_row(side, slot, row.data());
    for (int32_t begin = 0; begin < layout.head_dim; begin += layout.group) {
      const int32_t end = std::min(begin + layout.group, layout.head_dim);
      const auto [low, high] = std::minmax_element(row.begin() + begin, row.begin() + end);
      const Quantizer quantizer(*low, *high, layout.bits());
      writer.set_scale(layout.scale_index(slot, begin), quantizer);
      for (int32_t channel = begin; channel < end; ++channel) {
        writer.set_code(slot, channel, quantizer.code(row[static_cast<size_t>(channel)]));
      }
    }
  }
}

}  // namespace

size_t bytes(Side side, const PageFormat& format) { return layout(side, format).bytes(); }

// One number at a time: every backend's encoder must repeat this arithmetic and these bytes.
void encode(const SideToEncode& side) {
  const SideLayout where = layout(side.side, side.format);
  if (side.side == Side::kKeys) {
    encode_keys(side, where);
  } else {
    encode_values(side, where);
  }
}

void decode(const EncodedSide& encoded, int32_t begin, int32_t n, float* out) {
  const Side side = encoded.side;
  const int32_t head_dim = encoded.format.head.of(side);
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
