// Byte offsets in the sides of CommVQ pages.
#include "formats/commvq/commvq.h"

#include <bit>
#include <cstring>

namespace kvq::commvq {
namespace {

constexpr int32_t kAtOnce = 8;  // fields that fill whole bytes

int32_t share_of_slots(Scope scope, int32_t kv_heads) {
  return scope == Scope::kHead ? kPageSlots : (kPageSlots + kv_heads - 1) / kv_heads;
}

}  // namespace

void KeyLayout::unpack(const std::byte* side, int32_t head_stage, uint8_t (&indices)[kIndexFields]) const {
  const std::byte* from = side + static_cast<size_t>(head_stage) * stage_bytes();
  const auto mask = (1U << static_cast<uint32_t>(index_bits)) - 1U;
  for (int32_t field = 0; field < kIndexFields; field += kAtOnce, from += index_bits) {
    uint64_t word = 0;
    std::memcpy(&word, from, static_cast<size_t>(index_bits));
    for (int32_t i = 0; i < kAtOnce; ++i) {
      indices[field + i] = static_cast<uint8_t>(word >> static_cast<uint32_t>(i * index_bits) & mask);
    }
  }
}

void KeyLayout::pack(const uint8_t (&indices)[kIndexFields], int32_t head_stage, std::byte* side) const {
  std::byte* to = side + static_cast<size_t>(head_stage) * stage_bytes();
  for (int32_t field = 0; field < kIndexFields; field += kAtOnce, to += index_bits) {
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

}  // namespace kvq::commvq
