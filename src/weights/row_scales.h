// Checks and scales of a matrix's rows.
#pragma once

#include "core/memory.h"
#include "weights/matrix.h"
#include "weights/stepped_loops.h"

#include <cstdint>
#include <span>

namespace kvq::weights {

/// Throws KVQ_E_ARGUMENT unless all numbers of row `index` are finite.
void check_finite(std::span<const float> row, int32_t index, const char* argument);

/// Fill in scales: root mean squares of the rows relative to the largest one, since FP16 has too little range for small
/// weights. Throws as check_finite. \param w  [out, in] of type `dtype`
void find_row_scales(Allocator& allocator, SteppedLoops& loops, const void* w, kvq_dtype dtype, Matrix& matrix);
/// Time per row.
inline double row_scale_time(int32_t in) { return 1.5 * in; }

}  // namespace kvq::weights
