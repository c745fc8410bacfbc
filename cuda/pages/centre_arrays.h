// The numbers of trained centres as kernels read them (kernels/pages/centre_tables.h), made on the host.
#pragma once

#include "core/rope.h"
#include "formats/gain_shape/model_centres.h"

#include <cstdint>

namespace kvq::cuda {

/// What caches share of one side of a layer.
struct SideArrays {
  SideArrays(Allocator& allocator, const ModelCentres& centres, int32_t layer, Side side);

  Vector<float> floats;    // [kv_heads][centres][head_dim]
  Vector<int8_t> rounded;  // [kv_heads][quads][padded][4]
  Vector<float> means;     // [kv_heads][head_dim]
  Vector<float> scales;    // [kv_heads]
  Vector<float> biases;    // [kv_heads][padded] of vectors that nothing is multiplied by
  int32_t padded = 0;
};

/// What follows from how a cache turns keys.
struct TurnArrays {
  TurnArrays(Allocator& allocator, const ModelCentres& centres, int32_t layer, const Rope& rope);

  Vector<float> page_turns;  // [32] rows
  Vector<float> biases;      // [kv_heads][padded] as a page turns centres
};

}  // namespace kvq::cuda
