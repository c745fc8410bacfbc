#include "pages/codecs.h"

#include "core/error.h"
#include "formats/gain_shape/model_centres.h"
#include "kernels/pages/known_codes.h"

#include <algorithm>
#include <iterator>
#include <span>

namespace kvq::cuda {
namespace {

constexpr int32_t kChunk = 16;

constexpr bool is_listed(std::span<const CodeType> codes, CodeType code) {
  return std::find(codes.begin(), codes.end(), code) != codes.end();
}
static_assert(std::all_of(std::begin(kPlainCodes), std::end(kPlainCodes), fits_kernels) &&
              std::all_of(std::begin(kGainCodes), std::end(kGainCodes), fits_kernels));

bool is_known(const SideFormat& format) {
  return format.code.is_commvq() || is_listed(kPlainCodes, format.code) || is_listed(kGainCodes, format.code);
}

bool has_indices(Side side, const PageFormat& format) {
  if (!format.side(side).has_trained_centres()) return false;
  return static_cast<const ModelCentres*>(format.trained)->shape.centres(side) > 1;
}

uint32_t side_code(Side side, const PageFormat& format) {
  const SideFormat& of_side = format.side(side);
  if (!is_known(of_side)) {
    fail(KVQ_E_INTERNAL, "there are no kernels for pages of coding %d with %d bits",
         static_cast<int>(of_side.code.coding), of_side.code.bits);
  }
  // Values are never relative to their page's mean.
  const bool no_mean = side == Side::kValues && of_side.centre == Centre::kPageMean;
  return FormatCode::side(of_side.code, of_side.is_rotated(), no_mean ? Centre::kNone : of_side.centre,
                          has_indices(side, format));
}

/// Calls `move` with a place in the order that formats define, the same on the device, how many bytes, and bits that
/// differ in every byte.
template <typename Move>
void move_field(const SideLayout& side, const FieldPlace& field, const Move& move) {
  constexpr int32_t kNumber = 2;  // bytes of FP16
  switch (field.order) {
    case DeviceOrder::kSame:
      return move(field.host, field.device, field.bytes, uint8_t{0});
    case DeviceOrder::kFlipped:
      return move(field.host, field.device, field.bytes, kMeanFlip);
    case DeviceOrder::kChunks:
      for (int32_t i = 0; i < field.bytes / kChunk; ++i) {
        const int32_t at =
            side.side == Side::kKeys ? key_chunk(side.code, i) : value_chunk(side.code, side.head_dim, i);
        move(field.host + i * kChunk, field.device + at * kChunk, kChunk, uint8_t{0});
      }
      return;
    case DeviceOrder::kScales:
      for (int32_t i = 0; i < field.bytes / kNumber; ++i) {
        move(field.host + kNumber * i, field.device + kNumber * scale_place(i), kNumber, uint8_t{0});
      }
      return;
    case DeviceOrder::kSlots:
      for (int32_t i = 0; i < field.bytes; ++i) move(field.host + i, field.device + slot_place(i), 1, uint8_t{0});
      return;
  }
}

/// The same for a whole page. Sides with codes of a codebook lie as they are.
template <typename Move>
void move_page(const PageFormat& format, const Move& move) {
  const FormatCode code = without_codes(format);
  const SideLayout sides[] = {code.key_layout(format.head.keys), code.value_layout(format.head.values)};
  const PagePlaces page = page_places(sides[0], sides[1]);
  const int32_t values_at = has_codes(format) ? coded_values_at(format) : page.values_at;
  for (const SideLayout& side : sides) {
    const auto host_at = static_cast<int32_t>(format.offset(side.side));
    const int32_t device_at = side.side == Side::kKeys ? 0 : values_at;
    if (format.side(side.side).code.is_commvq()) {
      move(host_at, device_at, static_cast<int32_t>(format.bytes(side.side)), uint8_t{0});
      continue;
    }
    for_each_field(side, side.side == Side::kKeys ? page.keys : page.values, [&](const FieldPlace& field) {
      move_field(side, field, [&](int32_t host, int32_t device, int32_t n, uint8_t flip) {
        move(host_at + host, device_at + device, n, flip);
      });
    });
  }
}

void copy_flipped(const std::byte* from, std::byte* to, int32_t n, uint8_t flip) {
  std::transform(from, from + n, to, [flip](std::byte each) { return each ^ std::byte{flip}; });
}

}  // namespace

bool knows(const PageFormat& format) { return is_known(format.keys) && is_known(format.values); }

bool has_codes(const PageFormat& format) { return format.keys.code.is_commvq() || format.values.code.is_commvq(); }

FormatCode without_codes(const PageFormat& format) {
  FormatCode code = format_code(format);
  if (format.keys.code.is_commvq()) code.bits &= ~FormatCode::kKeyCode;
  if (format.values.code.is_commvq()) code.bits &= ~FormatCode::kValueCode;
  return code;
}

FormatCode format_code(const PageFormat& format) {
  const uint32_t shift = format.values.group == 128 ? 2U : (format.values.group == 64 ? 1U : 0U);
  return {side_code(Side::kKeys, format) | side_code(Side::kValues, format) << FormatCode::kSideBits |
          shift << FormatCode::kGroupBit};
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
