#include "pages/codecs.h"

#include "core/error.h"
#include "formats/gain_shape/model_centres.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>

namespace kvq::cuda {
namespace {

constexpr int32_t kChunk = 16;

// The kinds of sides that the append kernels encode and the attention kernels read. Whatever is not here is refused.
constexpr Kind kKnown[] = {Kind::kFloat16,    Kind::kInt8,       Kind::kInt4,       Kind::kInt3,
                           Kind::kInt2,       Kind::kCommvq,     Kind::kGs4,        Kind::kGs3,
                           Kind::kGs2,        Kind::kGs1,        Kind::kGt3,        Kind::kGt2,
                           Kind::kGt1,        Kind::kGs4Centres, Kind::kGs3Centres, Kind::kGs2Centres,
                           Kind::kGs1Centres, Kind::kGt3Centres, Kind::kGt2Centres, Kind::kGt1Centres};
static_assert(index_of(Kind::kGt1) < 16, "a FormatCode has four bits for a kind");

bool is_known(const SideFormat& format) {
  return std::find(std::begin(kKnown), std::end(kKnown), format.kind) != std::end(kKnown);
}

uint32_t side_code(const SideFormat& format) {
  if (!is_known(format))
    fail(KVQ_E_INTERNAL, "there are no kernels for pages of kind %d", static_cast<int>(format.kind));
  const Kind kind = gain_shape::without_centres(format.kind);
  return static_cast<uint32_t>(kind) | (format.hadamard ? FormatCode::kHadamardKeys : 0U);
}

bool is_coded(const SideFormat& format) { return format.kind == Kind::kCommvq; }

/// Trained centres of a head; 0: the side is not relative to any.
int32_t centres_of(Side side, const PageFormat& format) {
  if (!gain_shape::has_trained_centres(format.side(side).kind)) return 0;
  return static_cast<const ModelCentres*>(format.trained)->shape.centres(side);
}

CentreCode centre_code(Side side, const PageFormat& format) {
  const int32_t centres = centres_of(side, format);
  if (centres > 0) return centres > 1 ? CentreCode::kSeveral : CentreCode::kOne;
  return side == Side::kKeys && format.keys.page_mean ? CentreCode::kPageMean : CentreCode::kNone;
}

gain_shape::Layout host_layout(Side side, const PageFormat& format) {
  const int32_t centres = centres_of(side, format);
  const SideFormat& of_side = format.side(side);
  return centres > 0 ? gain_shape::layout(side, of_side, format.head_dim, centres)
                     : gain_shape::layout(side, of_side, format.head_dim);
}

/// Calls `move` with a place in the order that formats define, the same on the device, and how many bytes.
template <typename PlaceOf, typename Move>
void move_codes(int32_t codes, const PlaceOf& place_of, const Move& move) {
  for (int32_t i = 0; i < codes / kChunk; ++i) move(i * kChunk, place_of(i) * kChunk, kChunk);
}

template <typename Move>
void move_scales(const SideBytes& bytes, const Move& move) {
  for (const int32_t plane : {bytes.codes, bytes.minima_offset()}) {
    for (int32_t i = 0; i < bytes.scales / 2; ++i) move(plane + 2 * i, plane + 2 * scale_place(i), 2);
  }
}

/// The same of a whole page, and with bits that differ in every byte. Sides with codes of a codebook lie as they are.
template <typename Move>
void move_page(const PageFormat& format, const Move& move) {
  const FormatCode code = without_codes(format);
  const int32_t head_dim = format.head_dim;
  PageBytes page = page_bytes(code, head_dim);
  if (has_codes(format)) page.values_at = coded_values_at(format);
  for (const Side side : {Side::kKeys, Side::kValues}) {
    if (!is_coded(format.side(side))) continue;
    const auto at = static_cast<int32_t>(format.offset(side));
    move(at, at, static_cast<int32_t>(format.bytes(side)), uint8_t{0});
    (side == Side::kKeys ? page.keys : page.values) = {};
  }
  const auto host_values = static_cast<int32_t>(format.key_bytes());
  const auto of_keys = [&](int32_t host, int32_t device, int32_t n) { move(host, device, n, uint8_t{0}); };
  const auto of_values = [&](int32_t host, int32_t device, int32_t n) {
    move(host_values + host, page.values_at + device, n, uint8_t{0});
  };
  move_codes(
      page.keys.codes, [&](int32_t i) { return key_chunk(code.keys(), i); }, of_keys);
  move_codes(
      page.values.codes, [&](int32_t i) { return value_chunk(code.values(), head_dim, i); }, of_values);
  move_scales(page.keys, of_keys);
  move_scales(page.values, of_values);
  // What there is a byte of for each slot.
  const auto move_slots = [](size_t host, int32_t device, const auto& move_of_side) {
    for (int32_t slot = 0; slot < kSlots; ++slot) {
      move_of_side(static_cast<int32_t>(host) + slot, device + gain_place(slot), 1);
    }
  };
  const auto move_half = [](size_t host, int32_t halves, int32_t which, const auto& move_of_side) {
    move_of_side(static_cast<int32_t>(host), halves + 2 * which, 2);
  };
  if (has_gains(code.keys())) {
    const gain_shape::Layout host = host_layout(Side::kKeys, format);
    move_slots(host.gain_offset(), page.key_gains, of_keys);
    move_half(host.largest_offset(), page.key_halves, kKeyLargest, of_keys);
    if (host.has_mean) {
      move_half(host.mean_scale_offset(), page.key_halves, kMeanScale, of_keys);
      move(static_cast<int32_t>(host.mean_offset()), page.mean, head_dim, kMeanFlip);
    }
    if (host.has_turn) move_half(host.turn_offset(), page.key_halves, kKeyTurn, of_keys);
    if (host.has_indices) move_slots(host.index_offset(), page.key_indices, of_keys);
  }
  if (has_gains(code.values())) {
    const gain_shape::Layout host = host_layout(Side::kValues, format);
    move_slots(host.gain_offset(), page.value_gains, of_values);
    move_half(host.largest_offset(), page.value_halves, kValueLargest, of_values);
    if (host.has_indices) move_slots(host.index_offset(), page.value_indices, of_values);
  }
}

void copy_flipped(const std::byte* from, std::byte* to, int32_t n, uint8_t flip) {
  std::transform(from, from + n, to, [flip](std::byte each) { return each ^ std::byte{flip}; });
}

}  // namespace

bool knows(const PageFormat& format) { return is_known(format.keys) && is_known(format.values); }

bool has_codes(const PageFormat& format) { return is_coded(format.keys) || is_coded(format.values); }

FormatCode without_codes(const PageFormat& format) {
  FormatCode code = format_code(format);
  if (is_coded(format.keys)) code.bits &= ~FormatCode::kKeys;
  if (is_coded(format.values)) code.bits &= ~FormatCode::kValues;
  return code;
}

FormatCode format_code(const PageFormat& format) {
  const uint32_t shift = format.values.group == 128 ? 2U : (format.values.group == 64 ? 1U : 0U);
  const auto centre = [&format](Side side) { return static_cast<uint32_t>(centre_code(side, format)); };
  return {side_code(format.keys) | side_code(format.values) << 5U | shift << 10U |
          centre(Side::kKeys) << FormatCode::kKeyCentre | centre(Side::kValues) << FormatCode::kValueCentre};
}

void to_device_order(const PageFormat& format, const std::byte* host, std::byte* device) {
  std::fill_n(device, format.bytes(), std::byte{0});
  move_page(format, [&](int32_t host_at, int32_t device_at, int32_t n, uint8_t flip) {
    copy_flipped(host + host_at, device + device_at, n, flip);
  });
}

void to_host_order(const PageFormat& format, const std::byte* device, std::byte* host) {
  std::fill_n(host, format.bytes(), std::byte{0});
  move_page(format, [&](int32_t host_at, int32_t device_at, int32_t n, uint8_t flip) {
    copy_flipped(device + device_at, host + host_at, n, flip);
  });
}

}  // namespace kvq::cuda
