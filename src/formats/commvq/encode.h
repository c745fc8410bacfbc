// Floats to bytes of CommVQ pages: of one head, or of all heads together where they share codes or norms.
#pragma once

#include "formats/commvq/context.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace kvq::commvq {

/// One side of pages of the same tokens as floats, keys before RoPE: [32][heads][head_dim].
struct GroupSide {
  const float* numbers;
  int32_t heads;
  int32_t first_head;
};

/// Write an FP16 side to the column of head `head` in a GroupSide's numbers; rotates keys back.
void read_side(const Context& context, Side side, const std::byte* float16, int32_t heads, int32_t head, int32_t used,
               const SlotPositions& positions, float* numbers) noexcept;

/// Work space of one call.
size_t key_work_floats(const Context& context);
size_t value_work_floats(const Context& context);

/// Fits of one head's tokens.
using KeyFits = std::array<KeyFit, kPageSlots>;

/// Write the indices of head `head` of the group; `out` holds zeros.
KeyFits encode_keys(const Context& context, const GroupSide& keys, int32_t head, std::byte* out, float* work) noexcept;
/// Write the norms in head `head`'s page, after all heads of the group have their indices. `fits`: of these heads.
void write_norms(const Context& context, const GroupSide& keys, int32_t head, const KeyFits* fits,
                 std::byte* out) noexcept;

/// Codes of a group's values, shared by all its heads or of head `head` alone: [slots] words of bits, in the work
/// space, and scales.
struct ValueCodes {
  const uint32_t* bits;
  size_t words;  // per slot
  std::array<uint16_t, kPageSlots> scales;
};
ValueCodes encode_values(const Context& context, const GroupSide& values, int32_t head, float* work) noexcept;
/// Write one head's part of the codes; `out` holds zeros. `part`: its index among heads that share the code, 0 for a
/// code of its own.
void write_values(const Context& context, const ValueCodes& codes, int32_t part, std::byte* out) noexcept;

}  // namespace kvq::commvq
