#include "codecs.h"

#include "core/error.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>

namespace kvq::cuda {
namespace {

constexpr int32_t kChunk = 16;

// The kinds of sides that the append kernels encode and the attention kernels read. Whatever is not here is refused.
constexpr Kind kKnown[] = {Kind::kFloat16, Kind::kInt8, Kind::kInt4, Kind::kInt3, Kind::kInt2, Kind::kGs4,
                           Kind::kGs3,     Kind::kGs2,  Kind::kGs1,  Kind::kGt3,  Kind::kGt2,  Kind::kGt1};
static_assert(index_of(Kind::kGt1) < 16, "a FormatCode has four bits for a kind");

bool is_known(const SideFormat& format) {
  return std::find(std::begin(kKnown), std::end(kKnown), format.kind) != std::end(kKnown);
}

uint32_t side_code(const SideFormat& format) {
  if (!is_known(format)) fail(KVQ_E_INTERNAL, "kernels know no pages of kind %d", static_cast<int>(format.kind));
  return static_cast<uint32_t>(format.kind) | (format.hadamard ? FormatCode::kHadamardKeys : 0U);
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

/// The same of a whole page, and with bits that differ in every byte.
template <typename Move>
void move_page(const PageFormat& format, const Move& move) {
  const FormatCode code = format_code(format);
  const int32_t head_dim = format.head_dim;
  const PageBytes page = page_bytes(code, head_dim);
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
  if (has_gains(code.keys())) {
    const gain_shape::Layout host = gain_shape::layout(Side::kKeys, format.keys, head_dim);
    for (int32_t slot = 0; slot < kSlots; ++slot) {
      of_keys(static_cast<int32_t>(host.gain_offset()) + slot, page.key_gains + gain_place(slot), 1);
    }
    of_keys(static_cast<int32_t>(host.largest_offset()), page.key_halves + 2 * kKeyLargest, 2);
    if (host.has_mean) {
      of_keys(static_cast<int32_t>(host.mean_scale_offset()), page.key_halves + 2 * kMeanScale, 2);
      move(static_cast<int32_t>(host.mean_offset()), page.mean, head_dim, kMeanFlip);
    }
  }
  if (has_gains(code.values())) {
    const gain_shape::Layout host = gain_shape::layout(Side::kValues, format.values, head_dim);
    for (int32_t slot = 0; slot < kSlots; ++slot) {
      of_values(static_cast<int32_t>(host.gain_offset()) + slot, page.value_gains + gain_place(slot), 1);
    }
    of_values(static_cast<int32_t>(host.largest_offset()), page.value_halves + 2 * kValueLargest, 2);
  }
}

void copy_flipped(const std::byte* from, std::byte* to, int32_t n, uint8_t flip) {
  std::transform(from, from + n, to, [flip](std::byte each) { return each ^ std::byte{flip}; });
}

}  // namespace

bool knows(const PageFormat& format) { return is_known(format.keys) && is_known(format.values); }

FormatCode format_code(const PageFormat& format) {
  const uint32_t shift = format.values.group == 128 ? 2U : (format.values.group == 64 ? 1U : 0U);
  return {side_code(format.keys) | side_code(format.values) << 5U | shift << 10U |
          (format.keys.page_mean ? FormatCode::kPageMean : 0U)};
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
