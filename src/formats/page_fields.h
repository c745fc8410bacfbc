// Table of a page's fields, on the host and on a GPU: sizes, offsets and copies between the two follow from it. Also
// compiled as device code.
#pragma once

#include "formats/side_format.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace kvq {

/// Fields of a side, except those defined by a codebook.
enum class Field : uint8_t {
  kCodes,         // planes of codes
  kScales,        // FP16: for integers, one per channel of keys, one per slot and group of channels of values
  kMinima,        // FP16, as kScales
  kGains,         // a gain code per slot
  kMean,          // INT8, one per channel: the mean of the page's keys
  kLargestGain,   // FP16
  kMeanScale,     // FP16
  kSlotRotation,  // 16 bits: 1 if each trained centre of keys was rotated by the position of its slot, 0 if by the
                  // page's
  kCentres,       // index of a trained centre per slot
};

/// A GPU's order of the elements of a field (cuda/kernels/pages/order.h).
enum class DeviceOrder : uint8_t {
  kSame,
  kChunks,   // chunks of 16 bytes trade places, by side and code type
  kScales,   // the middle two of every four numbers trade places
  kSlots,    // by the lanes that read them
  kFlipped,  // the highest bit of each byte is flipped
};

struct FieldRow {
  Field field;
  DeviceOrder order;
};
/// All fields in host order.
inline constexpr std::array<FieldRow, 9> kFieldRows = {{{Field::kCodes, DeviceOrder::kChunks},
                                                        {Field::kScales, DeviceOrder::kScales},
                                                        {Field::kMinima, DeviceOrder::kScales},
                                                        {Field::kGains, DeviceOrder::kSlots},
                                                        {Field::kMean, DeviceOrder::kFlipped},
                                                        {Field::kLargestGain, DeviceOrder::kSame},
                                                        {Field::kMeanScale, DeviceOrder::kSame},
                                                        {Field::kSlotRotation, DeviceOrder::kSame},
                                                        {Field::kCentres, DeviceOrder::kSlots}}};

constexpr size_t row_of(Field field) {
  size_t row = 0;
  while (kFieldRows[row].field != field) ++row;
  return row;
}

/// All parameters of one side's fields.
struct SideLayout {
  Side side;
  CodeType code;
  int32_t head_dim;
  int32_t group = 32;  // channels of values that share a scale
  Centre centre = Centre::kNone;
  bool has_indices = false;  // if a head has several trained centres

  KVQ_HOST_DEVICE constexpr int32_t bits() const { return code.bits; }
  KVQ_HOST_DEVICE constexpr bool has_mean() const { return side == Side::kKeys && centre == Centre::kPageMean; }
  KVQ_HOST_DEVICE constexpr bool has_slot_rotation() const { return side == Side::kKeys && centre == Centre::kTrained; }

  // Codes of three bits are a plane of the two low bits followed by one of the highest.
  KVQ_HOST_DEVICE constexpr PackedPlane low_plane() const {
    return side_plane(side, bits() == 3 ? 2 : bits(), head_dim);
  }
  KVQ_HOST_DEVICE constexpr PackedPlane high_plane() const { return side_plane(side, 1, head_dim); }

  KVQ_HOST_DEVICE constexpr int32_t value_groups() const {
    // Avoids division by a run-time value.
    return group == 32 ? (head_dim + 31) / 32 : (group == 64 ? (head_dim + 63) / 64 : (head_dim + 127) / 128);
  }
  KVQ_HOST_DEVICE constexpr int32_t scales() const {
    return side == Side::kKeys ? head_dim : value_groups() * kPageSlots;
  }
  /// Index of a scalar's scale.
  constexpr int32_t scale_index(int32_t slot, int32_t channel) const {
    return side == Side::kKeys ? channel : (channel / group) * kPageSlots + slot;
  }

  /// Bytes of a field; 0: the side has none.
  KVQ_HOST_DEVICE KVQ_ALWAYS_INLINE constexpr int32_t bytes(Field field) const {
    const int32_t number = 2;  // bytes of an FP16 number
    switch (field) {
      case Field::kCodes:
        return static_cast<int32_t>(low_plane().bytes() + (bits() == 3 ? high_plane().bytes() : 0));
      case Field::kScales:
      case Field::kMinima:
        return code.is_integer() ? number * scales() : 0;
      case Field::kGains:
        return code.has_gains() ? kPageSlots : 0;
      case Field::kMean:
        return has_mean() ? head_dim : 0;
      case Field::kLargestGain:
        return code.has_gains() ? number : 0;
      case Field::kMeanScale:
        return has_mean() ? number : 0;
      case Field::kSlotRotation:
        return has_slot_rotation() ? number : 0;
      case Field::kCentres:
        return has_indices ? kPageSlots : 0;
    }
    return 0;
  }

  // Offsets from the start of the side, on the host. Always inlined: kernels know most of the layout, and a compiler
  // that has had enough would compute it for every page.
  KVQ_ALWAYS_INLINE constexpr size_t high_offset() const { return low_plane().bytes(); }
  KVQ_ALWAYS_INLINE constexpr size_t scale_offset() const { return offset<Field::kScales>(); }
  KVQ_ALWAYS_INLINE constexpr size_t minimum_offset() const { return offset<Field::kMinima>(); }
  KVQ_ALWAYS_INLINE constexpr size_t gain_offset() const { return offset<Field::kGains>(); }
  KVQ_ALWAYS_INLINE constexpr size_t mean_offset() const { return offset<Field::kMean>(); }
  KVQ_ALWAYS_INLINE constexpr size_t largest_offset() const { return offset<Field::kLargestGain>(); }
  KVQ_ALWAYS_INLINE constexpr size_t mean_scale_offset() const { return offset<Field::kMeanScale>(); }
  KVQ_ALWAYS_INLINE constexpr size_t slot_rotation_offset() const { return offset<Field::kSlotRotation>(); }
  KVQ_ALWAYS_INLINE constexpr size_t index_offset() const { return offset<Field::kCentres>(); }
  /// Bytes of the side, before padding.
  KVQ_ALWAYS_INLINE constexpr size_t bytes() const {
    return sum_of_first(std::make_index_sequence<kFieldRows.size()>());
  }

  template <Field kField>
  KVQ_ALWAYS_INLINE constexpr size_t offset() const {
    return sum_of_first(std::make_index_sequence<row_of(kField)>());
  }

 private:
  template <size_t... kRows>
  KVQ_ALWAYS_INLINE constexpr size_t sum_of_first(std::index_sequence<kRows...> /*rows*/) const {
    return (size_t{0} + ... + static_cast<size_t>(bytes(kFieldRows[kRows].field)));
  }
};

/// `centres`: trained centres per head, for formats that have them.
constexpr SideLayout side_layout(Side side, const SideFormat& format, int32_t head_dim, int32_t centres = 0) {
  return {.side = side,
          .code = format.code,
          .head_dim = head_dim,
          .group = format.group,
          .centre = format.centre,
          .has_indices = format.has_trained_centres() && centres > 1};
}

/// Offsets of one side's fields on a GPU, from the start of the side.
struct SidePlaces {
  int32_t codes;    // bytes of the codes, which come first
  int32_t scales;   // bytes of the scales, which follow, and of the minima after them
  int32_t gains;    // [32]
  int32_t numbers;  // kDeviceNumbers FP16 numbers: keys' largest gain, their mean's scale or rotation flag, values'
                    // largest gain
  int32_t mean;     // [head_dim]
  int32_t centres;  // [32]
  int32_t bytes;    // side size if stored alone

  KVQ_HOST_DEVICE constexpr int32_t minima() const { return codes + scales; }
};

/// Offsets of a page's sides on a GPU. If both have gains, all codes come first and the fields of gains follow, so that
/// all codes are aligned.
struct PagePlaces {
  SidePlaces keys;
  SidePlaces values;
  int32_t values_at;
  int32_t bytes;
};

inline constexpr int32_t kDeviceNumbers = 4;
// Indices among these numbers.
inline constexpr int32_t kKeyLargest = 0;
inline constexpr int32_t kMeanScale = 1;
inline constexpr int32_t kKeySlotRotation = 1;
inline constexpr int32_t kValueLargest = 2;

KVQ_HOST_DEVICE constexpr SidePlaces side_places(const SideLayout& side) {
  SidePlaces at{};
  at.codes = side.bytes(Field::kCodes);
  at.scales = side.bytes(Field::kScales);
  at.gains = at.codes + 2 * at.scales;
  at.numbers = at.gains + side.bytes(Field::kGains);
  at.mean = at.numbers + (side.code.has_gains() ? 2 * kDeviceNumbers : 0);
  at.centres = at.mean + side.bytes(Field::kMean);
  at.bytes = (at.centres + side.bytes(Field::kCentres) + 63) / 64 * 64;
  return at;
}

KVQ_HOST_DEVICE constexpr PagePlaces page_places(const SideLayout& keys, const SideLayout& values) {
  PagePlaces page{side_places(keys), side_places(values), 0, 0};
  if (keys.code.has_gains() && values.code.has_gains()) {
    page.values_at = page.keys.codes;
    page.keys.gains = page.keys.codes + page.values.codes;
    page.values.gains = page.values.codes + kPageSlots;
    page.keys.numbers = page.keys.gains + 2 * kPageSlots;
    page.values.numbers = page.keys.numbers - page.values_at;
    page.keys.mean = page.keys.numbers + 4 * kDeviceNumbers;
    page.keys.centres = page.keys.mean + keys.bytes(Field::kMean);
    const int32_t value_centres = page.keys.centres + keys.bytes(Field::kCentres);
    page.values.centres = value_centres - page.values_at;
    page.bytes = (value_centres + values.bytes(Field::kCentres) + 15) / 16 * 16;
  } else {
    page.values_at = page.keys.bytes;
    page.bytes = page.values_at + page.values.bytes;
  }
  return page;
}

/// A field's offset on a GPU, from the start of its side.
constexpr int32_t device_offset(const SidePlaces& at, Side side, Field field) {
  switch (field) {
    case Field::kCodes:
      return 0;
    case Field::kScales:
      return at.codes;
    case Field::kMinima:
      return at.minima();
    case Field::kGains:
      return at.gains;
    case Field::kMean:
      return at.mean;
    case Field::kLargestGain:
      return at.numbers + 2 * (side == Side::kKeys ? kKeyLargest : kValueLargest);
    case Field::kMeanScale:
      return at.numbers + 2 * kMeanScale;
    case Field::kSlotRotation:
      return at.numbers + 2 * kKeySlotRotation;
    case Field::kCentres:
      return at.centres;
  }
  return 0;
}

/// A field of a side, with offsets from the start of the side.
struct FieldPlace {
  Field field;
  DeviceOrder order;
  int32_t bytes;
  int32_t host;
  int32_t device;
};

/// Calls `use` with every field of the side.
template <typename Use>
constexpr void for_each_field(const SideLayout& side, const SidePlaces& at, const Use& use) {
  int32_t host = 0;
  for (const FieldRow& row : kFieldRows) {
    const int32_t bytes = side.bytes(row.field);
    if (bytes > 0) use(FieldPlace{row.field, row.order, bytes, host, device_offset(at, side.side, row.field)});
    host += bytes;
  }
}

}  // namespace kvq
