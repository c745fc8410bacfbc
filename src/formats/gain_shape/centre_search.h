// The nearest of a head's centres.
#pragma once

#include "core/memory.h"

#include <cstdint>
#include <span>

namespace kvq::centred {

/// ‖x − C_i‖² is least where ⟨x − μ, C_i − μ⟩ − bias_i is largest, μ the mean of the centres. Both vectors of the
/// product are rounded to eight bits with one scale each: the products are then exact on every backend, so that all of
/// them find the same centre, and what may be a little farther than the nearest is so by less than a percent of the
/// residual.
struct CentreSearch {
  /// Centres that kernels take at a time.
  static constexpr int32_t kLanes = 16;
  static constexpr int32_t kQuad = 4;  // consecutive channels that a word has

  /// `centres`: [n][head_dim].
  CentreSearch(Allocator& allocator, std::span<const float> centres, int32_t head_dim);

  int32_t padded_count() const { return (count + kLanes - 1) / kLanes * kLanes; }
  int32_t quads() const { return (head_dim + kQuad - 1) / kQuad; }

  /// `[padded_count()]`, where the channels of centres are multiplied by factors whose squares are `squares`; infinite
  /// for those beyond the last.
  void fill_biases(std::span<const float> squares, float* biases) const;
  /// x − μ in eight bits, padded with zeros to whole quads; returns the scale of its product with a centre.
  float round(const float* x, int8_t* rounded) const;
  /// The first of those that are nearest. `biases`: as fill_biases() makes them for what x was multiplied by.
  uint8_t nearest(const float* x, const float* biases) const;

  std::span<const float> centres;
  int32_t head_dim;
  int32_t count;
  float scale;             // of `rounded`
  Vector<float> mean;      // [head_dim]
  Vector<int8_t> rounded;  // centres − mean, [quads()][padded_count()][kQuad]
  Vector<int32_t> totals;  // of a centre's rounded numbers, [padded_count()]
};

}  // namespace kvq::centred
