// Trained centres as kernels read them (kernels/pages/centre_tables.h, centre_rows.h), computed on the host.
#pragma once

#include "core/memory.h"
#include "core/rope.h"
#include "formats/gain_shape/model_centres.h"
#include "kernels/pages/centre_rows.h"

#include <cstdint>

namespace kvq::cuda {

/// One side of a layer, for all caches.
struct SideArrays {
  SideArrays(Allocator& allocator, const ModelCentres& centres, int32_t layer, Side side);

  Vector<float> floats;    // [kv_heads][centres][head_dim]
  Vector<int8_t> rounded;  // [kv_heads][quads][padded][4]
  Vector<float> means;     // [kv_heads][head_dim]
  Vector<float> scales;    // [kv_heads]
  Vector<float> biases;    // [kv_heads][padded], for vectors without factors
  int32_t padded = 0;
};

/// What depends on how a cache rotates keys.
struct RotationArrays {
  RotationArrays(Allocator& allocator, const ModelCentres& centres, int32_t layer, const Rope& rope);

  Vector<float> page_rotations;  // [32] rows
  Vector<float> biases;          // [kv_heads][padded] as a page rotates centres
};

/// Rows of one layer's centres, for attention. Arrays of a side without centres are empty.
struct CentreRowArrays {
  CentreRowArrays(Allocator& allocator, const ModelCentres& centres, int32_t layer, const Rope& rope);

  Vector<uint16_t> keys;
  Vector<uint16_t> values;
  Vector<uint16_t> slot_rotations;
  Vector<uint64_t> frequencies;  // [pairs]: revolutions a position, in units of 2^-64
  CentreRows counts{};           // everything but pointers

 private:
  void put_single_keys(const ModelCentres& centres, int32_t layer, const Rope& rope);
  void put_keys(const ModelCentres& centres, int32_t layer, const Rope& rope);
  void put_slot_rotations(const Rope& rope);
};

}  // namespace kvq::cuda
