#pragma once

#include "core/host_device.h"

#include <cstddef>
#include <cstdint>

namespace kvq {

/// Layout of one side of a page: an array of 32-bit words `[blocks][lanes]`.
///
/// A page side is one operand of a matrix product. It has a **lane** axis, which the product keeps (tokens for keys,
/// channels for values), and a **reduction** axis, which the product sums over (channels for keys, tokens for values).
/// A word holds `block()` consecutive reduction elements of one lane: byte i, field f of a word is element `4·f + i` of
/// the block. So one word feeds a 4-way byte dot product (or, after a shift and a mask, another one), consecutive words
/// are consecutive lanes of a vector register, and a tensor-core fragment is a whole word. 16-bit planes hold two
/// elements per word.
struct PackedPlane {
  int32_t field_bits;  // 1, 2, 4, 8 or 16
  int32_t reduction;   // elements summed over; the last block is padded with zeros
  int32_t lanes;

  // Codes of a codebook have fields of no bits, and their blocks are never requested.
  // NOLINTNEXTLINE(clang-analyzer-core.DivideZero)
  KVQ_HOST_DEVICE constexpr int32_t block() const { return 32 / field_bits; }
  // Avoids division by a run-time value: kernels evaluate this in their loops.
  KVQ_HOST_DEVICE constexpr int32_t blocks() const { return (reduction * field_bits + 31) / 32; }
  KVQ_HOST_DEVICE constexpr size_t words() const { return static_cast<size_t>(blocks()) * static_cast<size_t>(lanes); }
  KVQ_HOST_DEVICE constexpr size_t bytes() const { return words() * sizeof(uint32_t); }

  KVQ_HOST_DEVICE constexpr size_t word(int32_t lane, int32_t element) const {
    return static_cast<size_t>(element / block()) * static_cast<size_t>(lanes) + static_cast<size_t>(lane);
  }
  KVQ_HOST_DEVICE constexpr int32_t shift(int32_t element) const {
    const int32_t within = element % block();
    if (field_bits == 16) return 16 * within;
    return 8 * (within % 4) + field_bits * (within / 4);
  }

  KVQ_HOST_DEVICE constexpr uint32_t get(const uint32_t* words, int32_t lane, int32_t element) const {
    return (words[word(lane, element)] >> shift(element)) & ((1U << field_bits) - 1U);
  }
  /// The field must still be zero.
  KVQ_HOST_DEVICE constexpr void put(uint32_t* words, int32_t lane, int32_t element, uint32_t value) const {
    words[word(lane, element)] |= value << shift(element);
  }
};

}  // namespace kvq
