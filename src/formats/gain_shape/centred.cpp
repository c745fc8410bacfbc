#include "formats/gain_shape/centred.h"

#include "core/float16.h"
#include "core/hadamard.h"
#include "formats/float16/layout.h"
#include "formats/gain_shape/centre_turns.h"
#include "formats/gain_shape/context.h"
#include "formats/gain_shape/encode.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace kvq::centred {
namespace {

using gain_shape::Layout;

const ModelCentres& centres_of(const PageFormat& format) { return static_cast<const ModelCentres&>(*format.trained); }

Layout layout(Side side, const PageFormat& format) {
  return gain_shape::layout(side, format.side(side), format.head_dim, centres_of(format).shape.centres(side));
}

uint16_t& turn_at(const Layout& where, std::byte* data) {
  return *reinterpret_cast<uint16_t*>(data + where.turn_offset());
}

/// The nearest centre of a slot's vector is taken off it; returns its number. `turn`: that turns centres to the slot.
uint8_t take_centre(const SideToEncode& side, const float* biases, const float* turn, float* row) {
  const Context& context = context_of(*side.context);
  const Rope& rope = context.turns.rope();
  const bool keys = side.side == Side::kKeys;
  const int32_t dim = side.format.head_dim;
  std::array<float, kMaxHeadDim> x;
  std::copy_n(row, dim, x.begin());
  if (keys) turn_back(rope, turn, x.data());
  const uint8_t index = context.search(side.side, side.first_head).nearest(x.data(), biases);
  std::copy_n(context.centre(side.side, side.first_head, index), dim, x.begin());
  if (keys) rope.rotate(turn, x.data());
  for (int32_t i = 0; i < dim; ++i) row[i] -= x[static_cast<size_t>(i)];
  return index;
}

}  // namespace

// Without centres, which an application may have forgotten, pages have no bytes.
size_t bytes(Side side, const PageFormat& format) {
  return format.trained != nullptr ? layout(side, format).bytes() : 0;
}

void encode(const SideToEncode& side) {
  const Context& context = context_of(*side.context);
  const Rope& rope = context.turns.rope();
  const bool keys = side.side == Side::kKeys;
  const int32_t dim = side.format.head_dim;
  const Layout where = layout(side.side, side.format);
  const bool trellis = gain_shape::shape_of(side.format.side(side.side).kind).trellis;
  std::byte* out = side.out.front();
  const bool by_page = keys && side.positions[side.used - 1] - side.positions[0] == side.used - 1;
  if (keys) turn_at(where, out) = by_page ? 0 : 1;
  const float* biases = context.biases(side.side, side.first_head, by_page);
  const auto* halves = reinterpret_cast<const uint16_t*>(side.float16.front());
  std::array<float, kPageSlots> gains{};
  std::array<float, kMaxHeadDim> first;
  std::array<float, kMaxHeadDim> turn;
  std::array<float, kMaxHeadDim> row;
  if (by_page) context.turns.turn(side.positions[0], first.data());
  for (int32_t slot = 0; slot < side.used; ++slot) {
    const float* within = context.page_turns.data() + static_cast<size_t>(slot) * rope.table_stride();
    if (by_page) multiply_turns(rope.pairs(), first.data(), within, turn.data());
    if (keys && !by_page) context.turns.turn(side.positions[slot], turn.data());
    for (int32_t i = 0; i < dim; ++i) {
      row[static_cast<size_t>(i)] = from_float16(halves[float16::index(side.side, dim, slot, i)]);
    }
    const uint8_t index = take_centre(side, biases, turn.data(), row.data());
    if (where.has_indices) out[where.index_offset() + static_cast<size_t>(slot)] = std::byte{index};
    hadamard(row.data(), dim);
    gains[static_cast<size_t>(slot)] = gain_shape::encode_residual(where, trellis, row.data(), slot, out);
  }
  gain_shape::put_gains(where, gains, out);
}

void decode(const EncodedSide& encoded, int32_t begin, int32_t n, float* out) {
  const ModelCentres& centres = centres_of(encoded.format);
  const int32_t dim = encoded.format.head_dim;
  const std::byte* data = encoded.sides[encoded.head];
  const Layout where = layout(encoded.side, encoded.format);
  const bool trellis = gain_shape::shape_of(encoded.format.side(encoded.side).kind).trellis;
  const auto count = static_cast<size_t>(centres.shape.centres(encoded.side));
  const float* of_head = centres.layers[static_cast<size_t>(encoded.layer)].numbers->side(encoded.side).data() +
                         static_cast<size_t>(encoded.head) * count * static_cast<size_t>(dim);
  const bool keys = encoded.side == Side::kKeys;
  const bool by_page = keys && *reinterpret_cast<const uint16_t*>(data + where.turn_offset()) == 0;
  std::array<float, kMaxHeadDim> centre;
  std::array<float, kMaxHeadDim> turn;
  for (int32_t slot = begin; slot < begin + n; ++slot, out += dim) {
    const size_t index =
        where.has_indices ? static_cast<size_t>(data[where.index_offset() + static_cast<size_t>(slot)]) : 0;
    std::copy_n(of_head + index * static_cast<size_t>(dim), dim, centre.begin());
    if (by_page) fill_page_turn(*encoded.rope, encoded.positions[0], slot, turn.data());
    if (keys && !by_page) encoded.rope->fill_table({encoded.positions + slot, 1}, turn.data());
    if (keys) encoded.rope->rotate(turn.data(), centre.data());
    hadamard(centre.data(), dim);
    gain_shape::decode_levels(where, trellis, data, slot, out);
    const float gain = gain_shape::read_gain(where, data, slot);
    for (int32_t i = 0; i < dim; ++i) out[i] = out[i] * gain + centre[static_cast<size_t>(i)];
  }
}

bool valid(Side side, const PageFormat& format, const std::byte* data) {
  const Layout where = layout(side, format);
  const auto half_at = [data](size_t offset) { return *reinterpret_cast<const uint16_t*>(data + offset); };
  if (!is_scale(half_at(where.largest_offset()))) return false;
  if (where.has_turn && half_at(where.turn_offset()) > 1) return false;
  const auto* indices = reinterpret_cast<const uint8_t*>(data + where.index_offset());
  const int32_t count = centres_of(format).shape.centres(side);
  return !where.has_indices || std::all_of(indices, indices + kPageSlots, [count](uint8_t i) { return i < count; });
}

void check(const Trained& trained, const CacheShape& cache, const PageFormat& format) {
  check_centres(static_cast<const ModelCentres&>(trained), cache, gain_shape::has_trained_centres(format.keys.kind),
                gain_shape::has_trained_centres(format.values.kind));
}

std::shared_ptr<const Resident> make_resident(Allocator& allocator, Parallel& /*parallel*/,
                                              std::shared_ptr<const Trained> centres) {
  return std::allocate_shared<const CentreSearches>(StlAllocator<CentreSearches>(allocator), allocator,
                                                    std::static_pointer_cast<const ModelCentres>(std::move(centres)));
}

Owned<LayerContext> make_context(Allocator& allocator, const Resident& resident, int32_t layer,
                                 const PageFormat& /*format*/, const OptionValues& /*options*/,
                                 const PositionTurns& turns) {
  return make_owned<Context>(allocator, allocator, static_cast<const CentreSearches&>(resident), layer, turns);
}

}  // namespace kvq::centred
