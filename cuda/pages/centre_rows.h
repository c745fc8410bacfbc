// Rows of trained centres, made on the host for kernels/pages/centre_rows.h.
#pragma once

#include "core/memory.h"
#include "core/rope.h"
#include "formats/gain_shape/model_centres.h"
#include "kernels/pages/centre_rows.h"

#include <cstdint>

namespace kvq::cuda {

/// Of one layer. Arrays that a side without centres would have are empty.
struct CentreRowArrays {
  CentreRowArrays(Allocator& allocator, const ModelCentres& centres, int32_t layer, const Rope& rope);

  Vector<uint16_t> keys;
  Vector<uint16_t> values;
  Vector<uint16_t> slot_turns;
  Vector<uint64_t> frequencies;  // of a pair, the fraction of a turn in a position, in units of 2^-64
  CentreRows counts{};           // everything but pointers

 private:
  void put_single_keys(const ModelCentres& centres, int32_t layer, const Rope& rope);
  void put_keys(const ModelCentres& centres, int32_t layer, const Rope& rope);
  void put_slot_turns(const Rope& rope);
};

}  // namespace kvq::cuda
