#include "formats/gain_shape/gain_shape.h"

#include "core/float16.h"
#include "core/head_rotation.h"
#include "formats/float16/float16.h"
#include "formats/gain_shape/centre_rotations.h"
#include "formats/gain_shape/context.h"
#include "formats/gain_shape/encode.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace kvq::gain_shape {
namespace {

uint16_t& number_at(std::byte* data, size_t offset) { return *reinterpret_cast<uint16_t*>(data + offset); }
uint16_t number_at(const std::byte* data, size_t offset) { return *reinterpret_cast<const uint16_t*>(data + offset); }

const ModelCentres& centres_of(const PageFormat& format) { return static_cast<const ModelCentres&>(*format.trained); }

void read_rotated_row(const SideToEncode& side, int32_t slot, float* row) {
  float16::read_row(side, slot, row);
  rotate_head(row, side.format.head.of(side.side));
}

/// Write the mean of the used slots; `mean`: its decoded value.
void put_mean(const SideToEncode& side, const SideLayout& layout, float* mean) {
  const int32_t dim = layout.head_dim;
  std::byte* out = side.out.front();
  std::array<float, kMaxHeadDim> row;
  std::fill_n(mean, dim, 0.0F);
  for (int32_t slot = 0; slot < side.used; ++slot) {
    read_rotated_row(side, slot, row.data());
    for (int32_t i = 0; i < dim; ++i) mean[i] += row[static_cast<size_t>(i)];
  }
  float largest = 0.0F;
  for (int32_t i = 0; i < dim; ++i) {
    mean[i] /= static_cast<float>(side.used);
    largest = std::max(largest, std::abs(mean[i]));
  }
  const uint16_t bits = to_float16(largest / kTopMean);
  number_at(out, layout.mean_scale_offset()) = bits;
  const float scale = from_float16(bits);
  const float inverse = scale > 0.0F ? 1.0F / scale : 0.0F;
  for (int32_t i = 0; i < dim; ++i) {
    const float code = std::nearbyint(std::clamp(mean[i] * inverse, -kTopMean, kTopMean));
    out[layout.mean_offset() + static_cast<size_t>(i)] = static_cast<std::byte>(static_cast<int8_t>(code));
    mean[i] = code * scale;
  }
}

void encode_plain(const SideToEncode& side) {
  const SideLayout where = layout(side.side, side.format);
  std::array<float, kMaxHeadDim> mean{};
  if (where.has_mean()) put_mean(side, where, mean.data());
  std::array<float, kPageSlots> gains{};
  std::array<float, kMaxHeadDim> row;
  for (int32_t slot = 0; slot < side.used; ++slot) {
    read_rotated_row(side, slot, row.data());
    for (size_t i = 0; i < static_cast<size_t>(where.head_dim); ++i) row[i] -= mean[i];
    gains[static_cast<size_t>(slot)] = encode_residual(where, row.data(), slot, side.out.front());
  }
  put_gains(where, gains, side.out.front());
}

void decode_plain(const EncodedSide& encoded, int32_t begin, int32_t n, float* out) {
  const int32_t dim = encoded.format.head.of(encoded.side);
  const std::byte* data = encoded.sides[encoded.head];
  const SideLayout where = layout(encoded.side, encoded.format);
  const float scale = where.has_mean() ? from_float16(number_at(data, where.mean_scale_offset())) : 0.0F;
  for (int32_t slot = begin; slot < begin + n; ++slot, out += dim) {
    decode_levels(where, data, slot, out);
    const float gain = read_gain(where, data, slot);
    for (int32_t i = 0; i < dim; ++i) {
      out[i] *= gain;
      if (!where.has_mean()) continue;
      const auto code = static_cast<int8_t>(data[where.mean_offset() + static_cast<size_t>(i)]);
      out[i] += static_cast<float>(code) * scale;
    }
  }
}

/// Subtract the nearest centre from a slot's vector; returns its index. `rotation`: rotation of centres to the slot.
uint8_t take_centre(const SideToEncode& side, const float* biases, const float* rotation, float* row) {
  const centred::Context& context = centred::context_of(*side.context);
  const Rope& rope = context.rotations.rope();
  const bool keys = side.side == Side::kKeys;
  const int32_t dim = side.format.head.of(side.side);
  std::array<float, kMaxHeadDim> x;
  std::copy_n(row, dim, x.begin());
  if (keys) undo_rope(rope, rotation, x.data());
  const uint8_t index = context.search(side.side, side.first_head).nearest(x.data(), biases);
  std::copy_n(context.centre(side.side, side.first_head, index), dim, x.begin());
  if (keys) rope.rotate(rotation, x.data());
  for (int32_t i = 0; i < dim; ++i) row[i] -= x[static_cast<size_t>(i)];
  return index;
}

void encode_around_centres(const SideToEncode& side) {
  const centred::Context& context = centred::context_of(*side.context);
  const Rope& rope = context.rotations.rope();
  const bool keys = side.side == Side::kKeys;
  const int32_t dim = side.format.head.of(side.side);
  const SideLayout where = layout(side.side, side.format);
  std::byte* out = side.out.front();
  const bool by_page = keys && side.positions.are_consecutive(side.used);
  if (keys) number_at(out, where.slot_rotation_offset()) = by_page ? 0 : 1;
  const float* biases = context.biases(side.side, side.first_head, by_page);
  std::array<float, kPageSlots> gains{};
  std::array<float, kMaxHeadDim> first;
  std::array<float, kMaxHeadDim> rotation;
  std::array<float, kMaxHeadDim> row;
  if (by_page) context.rotations.fill(side.positions[0], first.data());
  for (int32_t slot = 0; slot < side.used; ++slot) {
    const float* within = context.page_rotations.data() + static_cast<size_t>(slot) * rope.table_stride();
    if (by_page) centred::multiply_rotations(rope.pairs(), first.data(), within, rotation.data());
    if (keys && !by_page) context.rotations.fill(side.positions[slot], rotation.data());
    float16::read_row(side, slot, row.data());
    const uint8_t index = take_centre(side, biases, rotation.data(), row.data());
    if (where.has_indices) out[where.index_offset() + static_cast<size_t>(slot)] = std::byte{index};
    rotate_head(row.data(), dim);
    gains[static_cast<size_t>(slot)] = encode_residual(where, row.data(), slot, out);
  }
  put_gains(where, gains, out);
}

void decode_around_centres(const EncodedSide& encoded, int32_t begin, int32_t n, float* out) {
  const ModelCentres& centres = centres_of(encoded.format);
  const int32_t dim = encoded.format.head.of(encoded.side);
  const std::byte* data = encoded.sides[encoded.head];
  const SideLayout where = layout(encoded.side, encoded.format);
  const auto count = static_cast<size_t>(centres.shape.centres(encoded.side));
  const float* of_head = centres.layers[static_cast<size_t>(encoded.layer)].numbers->side(encoded.side).data() +
                         static_cast<size_t>(encoded.head) * count * static_cast<size_t>(dim);
  const bool keys = encoded.side == Side::kKeys;
  const bool by_page = keys && number_at(data, where.slot_rotation_offset()) == 0;
  std::array<float, kMaxHeadDim> centre;
  std::array<float, kMaxHeadDim> rotation;
  for (int32_t slot = begin; slot < begin + n; ++slot, out += dim) {
    const size_t index =
        where.has_indices ? static_cast<size_t>(data[where.index_offset() + static_cast<size_t>(slot)]) : 0;
    std::copy_n(of_head + index * static_cast<size_t>(dim), dim, centre.begin());
    if (by_page) centred::fill_page_rotation(*encoded.rope, encoded.positions[0], slot, rotation.data());
    if (keys && !by_page) encoded.rope->fill_table({encoded.positions + slot, 1}, rotation.data());
    if (keys) encoded.rope->rotate(rotation.data(), centre.data());
    rotate_head(centre.data(), dim);
    decode_levels(where, data, slot, out);
    const float gain = read_gain(where, data, slot);
    for (int32_t i = 0; i < dim; ++i) out[i] = out[i] * gain + centre[static_cast<size_t>(i)];
  }
}

}  // namespace

SideLayout layout(Side side, const PageFormat& format) {
  const SideFormat& of_side = format.side(side);
  const int32_t centres = of_side.has_trained_centres() ? centres_of(format).shape.centres(side) : 0;
  return side_layout(side, of_side, format.head.of(side), centres);
}

// Without centres, which an application may have forgotten, pages have no bytes.
size_t bytes(Side side, const PageFormat& format) {
  const bool lacks_centres = format.side(side).has_trained_centres() && format.trained == nullptr;
  return lacks_centres ? 0 : layout(side, format).bytes();
}

void encode(const SideToEncode& side) {
  if (side.format.side(side.side).has_trained_centres()) {
    encode_around_centres(side);
  } else {
    encode_plain(side);
  }
}

void decode(const EncodedSide& encoded, int32_t begin, int32_t n, float* out) {
  if (encoded.format.side(encoded.side).has_trained_centres()) {
    decode_around_centres(encoded, begin, n, out);
  } else {
    decode_plain(encoded, begin, n, out);
  }
}

bool valid(Side side, const PageFormat& format, const std::byte* data) {
  const SideLayout where = layout(side, format);
  if (!is_scale(number_at(data, where.largest_offset()))) return false;
  if (where.has_mean() && !is_scale(number_at(data, where.mean_scale_offset()))) return false;
  if (where.has_slot_rotation() && number_at(data, where.slot_rotation_offset()) > 1) return false;
  if (!where.has_indices) return true;
  const auto* indices = reinterpret_cast<const uint8_t*>(data + where.index_offset());
  const int32_t count = centres_of(format).shape.centres(side);
  return std::all_of(indices, indices + kPageSlots, [count](uint8_t i) { return i < count; });
}

void check(const Trained& trained, const CacheShape& cache, const PageFormat& format) {
  check_centres(static_cast<const ModelCentres&>(trained), cache, format.keys.has_trained_centres(),
                format.values.has_trained_centres());
}

std::shared_ptr<const Resident> make_resident(Allocator& allocator, Parallel& /*parallel*/,
                                              std::shared_ptr<const Trained> centres) {
  return std::allocate_shared<const centred::CentreSearches>(
      StlAllocator<centred::CentreSearches>(allocator), allocator,
      std::static_pointer_cast<const ModelCentres>(std::move(centres)));
}

Owned<LayerContext> make_context(Allocator& allocator, const Resident& resident, int32_t layer,
                                 const PageFormat& /*format*/, const OptionValues& /*options*/,
                                 const RotationTable& rotations) {
  return make_owned<centred::Context>(allocator, allocator, static_cast<const centred::CentreSearches&>(resident),
                                      layer, rotations);
}

}  // namespace kvq::gain_shape
