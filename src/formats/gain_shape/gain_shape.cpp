#include "formats/gain_shape/gain_shape.h"

#include "core/float16.h"
#include "core/hadamard.h"
#include "formats/float16/layout.h"
#include "formats/gain_shape/encode.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace kvq::gain_shape {
namespace {

uint16_t& half_at(std::byte* data, size_t offset) { return *reinterpret_cast<uint16_t*>(data + offset); }
uint16_t half_at(const std::byte* data, size_t offset) { return *reinterpret_cast<const uint16_t*>(data + offset); }

/// A slot's numbers, rotated.
void read_row(const SideToEncode& side, int32_t slot, float* row) {
  const int32_t dim = side.format.head_dim;
  const auto* halves = reinterpret_cast<const uint16_t*>(side.float16.front());
  for (int32_t i = 0; i < dim; ++i) row[i] = from_float16(halves[float16::index(side.side, dim, slot, i)]);
  hadamard(row, dim);
}

/// Write the mean of the slots in use; `mean`: as it decodes.
void put_mean(const SideToEncode& side, const Layout& layout, float* mean) {
  const int32_t dim = layout.head_dim;
  std::byte* out = side.out.front();
  std::array<float, kMaxHeadDim> row;
  std::fill_n(mean, dim, 0.0F);
  for (int32_t slot = 0; slot < side.used; ++slot) {
    read_row(side, slot, row.data());
    for (int32_t i = 0; i < dim; ++i) mean[i] += row[static_cast<size_t>(i)];
  }
  float largest = 0.0F;
  for (int32_t i = 0; i < dim; ++i) {
    mean[i] /= static_cast<float>(side.used);
    largest = std::max(largest, std::abs(mean[i]));
  }
  const uint16_t bits = to_float16(largest / kTopMean);
  half_at(out, layout.mean_scale_offset()) = bits;
  const float scale = from_float16(bits);
  const float inverse = scale > 0.0F ? 1.0F / scale : 0.0F;
  for (int32_t i = 0; i < dim; ++i) {
    const float code = std::nearbyint(std::clamp(mean[i] * inverse, -kTopMean, kTopMean));
    out[layout.mean_offset() + static_cast<size_t>(i)] = static_cast<std::byte>(static_cast<int8_t>(code));
    mean[i] = code * scale;
  }
}

}  // namespace

size_t bytes(Side side, const PageFormat& format) { return layout(side, format).bytes(); }

void encode(const SideToEncode& side) {
  const Layout where = layout(side.side, side.format);
  const bool trellis = shape_of(side.format.side(side.side).kind).trellis;
  std::array<float, kMaxHeadDim> mean{};
  if (where.has_mean) put_mean(side, where, mean.data());
  std::array<float, kPageSlots> gains{};
  std::array<float, kMaxHeadDim> row;
  for (int32_t slot = 0; slot < side.used; ++slot) {
    read_row(side, slot, row.data());
    for (size_t i = 0; i < static_cast<size_t>(where.head_dim); ++i) row[i] -= mean[i];
    gains[static_cast<size_t>(slot)] = encode_residual(where, trellis, row.data(), slot, side.out.front());
  }
  put_gains(where, gains, side.out.front());
}

void decode(const EncodedSide& encoded, int32_t begin, int32_t n, float* out) {
  const int32_t dim = encoded.format.head_dim;
  const std::byte* data = encoded.sides[encoded.head];
  const Layout where = layout(encoded.side, encoded.format);
  const bool trellis = shape_of(encoded.format.side(encoded.side).kind).trellis;
  const float scale = where.has_mean ? from_float16(half_at(data, where.mean_scale_offset())) : 0.0F;
  for (int32_t slot = begin; slot < begin + n; ++slot, out += dim) {
    decode_levels(where, trellis, data, slot, out);
    const float gain = read_gain(where, data, slot);
    for (int32_t i = 0; i < dim; ++i) {
      out[i] *= gain;
      if (!where.has_mean) continue;
      const auto code = static_cast<int8_t>(data[where.mean_offset() + static_cast<size_t>(i)]);
      out[i] += static_cast<float>(code) * scale;
    }
  }
}

bool valid(Side side, const PageFormat& format, const std::byte* data) {
  const Layout where = layout(side, format);
  return is_scale(half_at(data, where.largest_offset())) &&
         (!where.has_mean || is_scale(half_at(data, where.mean_scale_offset())));
}

}  // namespace kvq::gain_shape
