// Search for the nearest centre of a head.
#pragma once

#include "core/memory.h"

#include <cstdint>
#include <span>

namespace kvq::centred {

/// ‖x − C_i‖² is least where ⟨x − μ, C_i − μ⟩ − bias_i is largest, μ the mean of the centres. Both vectors of the
/// product are rounded to eight bits with one scale each: products are exact, so all backends find the same centre; it
/// may be farther than the nearest by less than a percent of the residual.
struct CentreSearch {
  /// Centres that kernels take at a time.
  static constexpr int32_t kLanes = 16;
  static constexpr int32_t kQuad = 4;  // consecutive channels of a word

  /// `centres`: [n][head_dim].
  CentreSearch(Allocator& allocator, std::span<const float> centres, int32_t head_dim);

  int32_t padded_count() const { return (count + kLanes - 1) / kLanes * kLanes; }
  int32_t quads() const { return (head_dim + kQuad - 1) / kQuad; }

  /// Fill `[padded_count()]` for centres whose channels are multiplied by factors with the squares `squares`; infinite
  /// for padding.
  void fill_biases(std::span<const float> squares, float* biases) const;
  /// Round x − μ to eight bits, padded with zeros to whole quads; returns the scale of its product with a centre.
  float round(const float* x, int8_t* rounded) const;
  /// The first of the nearest. `biases`: from fill_biases(), for the factors of x.
  uint8_t nearest(const float* x, const float* biases) const;

  std::span<const float> centres;
  int32_t head_dim;
  int32_t count;
  float scale;             // scale of `rounded`
  Vector<float> mean;      // [head_dim]
  Vector<int8_t> rounded;  // centres − mean, [quads()][padded_count()][kQuad]
  Vector<int32_t> totals;  // sums of each centre's rounded numbers, [padded_count()]
};

}  // namespace kvq::centred
