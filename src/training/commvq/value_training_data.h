// Training and held-out tokens of a codebook of values.
#pragma once

#include "core/memory.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvq {

/// Chosen tokens in runs of neighbours: the last `held_out` evaluate, the others train.
struct TokenSplit {
  explicit TokenSplit(Allocator& allocator) : tokens(allocator) {}

  Vector<size_t> tokens;
  size_t held_out = 0;

  size_t training() const { return tokens.size() - held_out; }
};

TokenSplit split_tokens(Allocator& allocator, size_t tokens, size_t at_most, double held_out, uint64_t seed);

/// Per channel the mean |v|, with a floor so that channels that are always zero can be divided by it.
void mean_magnitudes(std::span<const float> values, size_t channels, Vector<float>& out);

/// Unit vectors of v / channel_scale: [split.tokens][width]. `values` starts at the vector's first channel.
Vector<float> unit_vectors(Allocator& allocator, const TokenSplit& split, const float* values, size_t stride,
                           std::span<const float> channel_scale);

}  // namespace kvq
