// The code of one value vector: what its arrays are, and how it decodes.
#pragma once

#include "formats/commvq/codebook.h"
#include "formats/commvq/value_network.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvq {

/// The arrays of a LayerCodebook that concern one of a token's value vectors.
struct ValueCode {
  int32_t width = 0;
  int32_t bits = 0;                      // Nc
  std::span<const float> channel_scale;  // [width]
  std::span<const float> codes;          // C: [bits][width]
  std::span<const float> offset;         // [width]
  std::span<const float> proposal;       // [bits][width]
  std::span<const float> proposal_bias;  // [bits]
  ValueNetwork network{};                // instead of the two before; empty: there is none

  /// 32-bit words of a packed code: bit n is bit n % 32 of word n / 32; the last word may be partly unused, then zero.
  size_t words() const { return (static_cast<size_t>(bits) + 31) / 32; }
};

constexpr bool is_set(const uint32_t* code, size_t bit) { return ((code[bit / 32] >> (bit % 32)) & 1U) != 0; }

/// Vector `vector` of `shape.vectors()`. The codebook must have its values' arrays.
ValueCode value_code(const CodebookShape& shape, const LayerCodebook& codebook, int32_t vector);

/// The reference decoder: channel_scale ∘ token_scale · (offset + Σ of the rows of C whose bit is set), in order.
void decode_value(const ValueCode& code, const uint32_t* packed, float token_scale, float* out);

}  // namespace kvq
