// Network that proposes the bits of a value's code (Li et al., CommVQ): LayerNorm, a linear layer, GELU, a second
// linear layer with four outputs for each pair of bits, of which the largest wins.
#pragma once

#include "formats/commvq/value_kernels.h"

#include <cstddef>
#include <span>

namespace kvq {

/// Choices for a pair of bits: choice k sets bit 2m of a code if k & 1, and bit 2m + 1 if k & 2.
inline constexpr size_t kPairChoices = 4;

/// The arrays of a LayerCodebook for one of a token's value vectors; empty: no network.
struct ValueNetwork {
  std::span<const float> norm_gain;    // [width]
  std::span<const float> norm_bias;    // [width]
  std::span<const float> first;        // [hidden][width]
  std::span<const float> first_bias;   // [hidden]
  std::span<const float> second;       // [bits / 2][kPairChoices][hidden]
  std::span<const float> second_bias;  // [bits / 2][kPairChoices]

  bool empty() const { return second_bias.empty(); }
  size_t width() const { return norm_gain.size(); }
  size_t hidden() const { return first_bias.size(); }
  size_t bits() const { return second_bias.size() / 2; }

  /// Work space of propose_bits().
  size_t workspace_floats() const { return (width() + hidden() + second_bias.size()) * kValueBlock; }
};

/// Propose bits, 0 or 1, for kValueBlock unit vectors: `columns` [width][kValueBlock], `bits` [bits][kValueBlock]. Of
/// equal outputs the first one wins.
void propose_bits(const ValueNetwork& network, const ValueKernels& kernels, const float* columns, float* workspace,
                  float* bits) noexcept;

}  // namespace kvq
