#include "formats/commvq/commvq.h"

#include "core/float16.h"
#include "formats/commvq/context.h"
#include "formats/commvq/key_decoder.h"
#include "formats/commvq/value_code.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <vector>

namespace kvq::commvq {
namespace {

constexpr int32_t kFields = 2 * kPageSlots;
constexpr int32_t kAtOnce = 8;  // fields that begin and end with a byte

int32_t share_of_slots(Scope scope, int32_t kv_heads) {
  return scope == Scope::kHead ? kPageSlots : (kPageSlots + kv_heads - 1) / kv_heads;
}

const ModelCodebook& codebook_of(const PageFormat& format) {
  return static_cast<const ModelCodebook&>(*format.trained);
}

const CodebookShape& shape_of(const PageFormat& format) { return codebook_of(format).shape; }

void decode_keys(const EncodedSide& encoded, int32_t begin, int32_t n, float* out) {
  const ModelCodebook& codebook = codebook_of(encoded.format);
  const CodebookShape& shape = codebook.shape;
  const LayerCodebook& numbers = *codebook.layers[static_cast<size_t>(encoded.layer)].numbers;
  const KeyLayout layout = key_layout(shape);
  const auto stages = static_cast<size_t>(layout.head_stages);
  std::vector<uint8_t> indices(kPageSlots * 2 * stages);  // [slots][groups · stages]{a, b}
  for (size_t stage = 0; stage < stages; ++stage) {
    uint8_t fields[kFields];
    layout.unpack(encoded.sides[encoded.head], static_cast<int32_t>(stage), fields);
    for (size_t field = 0; field < kFields; ++field) {
      indices[(field % kPageSlots * stages + stage) * 2 + field / kPageSlots] = fields[field];
    }
  }
  std::vector<float> turn(encoded.rope->table_stride());
  for (int32_t slot = begin; slot < begin + n; ++slot, out += shape.head_dim) {
    const float norm = from_float16(layout.norms.get(encoded.sides, encoded.head, slot));
    decode_key(shape, numbers, encoded.head, indices.data() + static_cast<size_t>(slot) * 2 * stages, norm, out);
    encoded.rope->fill_table({encoded.positions + slot, 1}, turn.data());
    encoded.rope->rotate(turn.data(), out);
  }
}

void decode_values(const EncodedSide& encoded, int32_t begin, int32_t n, float* out) {
  const ModelCodebook& codebook = codebook_of(encoded.format);
  const CodebookShape& shape = codebook.shape;
  const LayerCodebook& numbers = *codebook.layers[static_cast<size_t>(encoded.layer)].numbers;
  const ValueLayout layout = value_layout(shape);
  const bool of_layer = shape.values.scope == Scope::kLayer;
  const ValueCode code = value_code(shape, numbers, of_layer ? 0 : encoded.head);
  std::vector<uint32_t> packed(code.words());
  std::vector<float> vector(static_cast<size_t>(code.width));
  const float* of_head = vector.data() + (of_layer ? static_cast<size_t>(encoded.head * shape.head_dim) : 0);
  for (int32_t slot = begin; slot < begin + n; ++slot, out += shape.head_dim) {
    std::fill(packed.begin(), packed.end(), 0U);
    for (int32_t bit = 0; bit < code.bits; ++bit) {
      const std::byte* side = encoded.sides[of_layer ? bit / layout.lanes : encoded.head];
      const auto* words = reinterpret_cast<const uint32_t*>(side);
      packed[static_cast<size_t>(bit) / 32] |= layout.plane().get(words, bit % layout.lanes, slot) << (bit % 32);
    }
    decode_value(code, packed.data(), from_float16(layout.scales.get(encoded.sides, encoded.head, slot)),
                 vector.data());
    std::copy_n(of_head, shape.head_dim, out);
  }
}

}  // namespace

void KeyLayout::unpack(const std::byte* side, int32_t head_stage, uint8_t (&indices)[2 * kPageSlots]) const {
  const std::byte* from = side + static_cast<size_t>(head_stage) * stage_bytes();
  const auto mask = (1U << static_cast<uint32_t>(index_bits)) - 1U;
  for (int32_t field = 0; field < kFields; field += kAtOnce, from += index_bits) {
    uint64_t word = 0;
    std::memcpy(&word, from, static_cast<size_t>(index_bits));
    for (int32_t i = 0; i < kAtOnce; ++i) {
      indices[field + i] = static_cast<uint8_t>(word >> static_cast<uint32_t>(i * index_bits) & mask);
    }
  }
}

void KeyLayout::pack(const uint8_t (&indices)[2 * kPageSlots], int32_t head_stage, std::byte* side) const {
  std::byte* to = side + static_cast<size_t>(head_stage) * stage_bytes();
  for (int32_t field = 0; field < kFields; field += kAtOnce, to += index_bits) {
    uint64_t word = 0;
    for (int32_t i = 0; i < kAtOnce; ++i) {
      word |= static_cast<uint64_t>(indices[field + i]) << static_cast<uint32_t>(i * index_bits);
    }
    std::memcpy(to, &word, static_cast<size_t>(index_bits));
  }
}

KeyLayout key_layout(const CodebookShape& shape) {
  const int32_t stages = shape.groups() * shape.keys.stages;
  const auto index_bits = static_cast<int32_t>(std::bit_width(static_cast<uint32_t>(shape.keys.codes))) - 1;
  const size_t codes = static_cast<size_t>(stages) * 8 * static_cast<size_t>(index_bits);
  return {stages, index_bits, {codes, share_of_slots(shape.keys.norms, shape.kv_heads)}};
}

ValueLayout value_layout(const CodebookShape& shape) {
  const int32_t lanes = shape.values.bits * shape.head_dim;
  return {lanes, {sizeof(uint32_t) * static_cast<size_t>(lanes), share_of_slots(shape.values.scope, shape.kv_heads)}};
}

// Without a codebook, which an application may have forgotten, pages have no bytes.
size_t bytes(Side side, const PageFormat& format) {
  if (format.trained == nullptr) return 0;
  return side == Side::kKeys ? key_layout(shape_of(format)).bytes() : value_layout(shape_of(format)).bytes();
}

bool spans_heads(Side side, const PageFormat& format) {
  if (format.trained == nullptr) return false;
  const CodebookShape& shape = shape_of(format);
  return (side == Side::kKeys ? shape.keys.norms : shape.values.scope) == Scope::kLayer && shape.kv_heads > 1;
}

void decode(const EncodedSide& encoded, int32_t begin, int32_t n, float* out) {
  if (encoded.side == Side::kKeys) {
    decode_keys(encoded, begin, n, out);
  } else {
    decode_values(encoded, begin, n, out);
  }
}

bool valid(Side side, const PageFormat& format, const std::byte* data) {
  const TokenNumbers numbers =
      side == Side::kKeys ? key_layout(shape_of(format)).norms : value_layout(shape_of(format)).scales;
  const auto* first = reinterpret_cast<const uint16_t*>(data + numbers.offset);
  return std::all_of(first, first + numbers.share, is_finite_float16);
}

}  // namespace kvq::commvq
