// Arrays and decoder of one value vector's code.
#pragma once

#include "formats/commvq/codebook.h"
#include "formats/commvq/value_network.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvq {

/// The arrays of a LayerCodebook for one of a token's value vectors.
struct ValueCode {
  int32_t width = 0;
  int32_t bits = 0;                      // Nc
  std::span<const float> channel_scale;  // [width]
  std::span<const float> codes;          // C: [bits][width]
  std::span<const float> offset;         // [width]
  std::span<const float> proposal;       // [bits][width]
  std::span<const float> proposal_bias;  // [bits]
  ValueNetwork network{};                // replaces the two before; empty: none

  /// 32-bit words of a packed code: bit n is bit n % 32 of word n / 32; unused bits of the last word are zero.
  size_t words() const { return (static_cast<size_t>(bits) + 31) / 32; }
};

constexpr bool is_set(const uint32_t* code, size_t bit) { return ((code[bit / 32] >> (bit % 32)) & 1U) != 0; }

/// Code of vector `vector` of `shape.vectors()`. The codebook must have its values' arrays.
ValueCode value_code(const CodebookShape& shape, const LayerCodebook& codebook, int32_t vector);

/// Reference decoder: channel_scale ∘ token_scale · (offset + Σ of the rows of C with a set bit), in order.
void decode_value(const ValueCode& code, const uint32_t* packed, float token_scale, float* out);

}  // namespace kvq
