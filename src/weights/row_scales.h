// Numbers that matrices are made of: whether they can be used, and how large they are.
#pragma once

#include "core/memory.h"
#include "core/parallel.h"
#include "weights/matrix.h"

#include <cstdint>
#include <span>

namespace kvq::weights {

/// Throws KVQ_E_ARGUMENT unless all numbers of row `index` are finite.
void check_finite(std::span<const float> row, int32_t index, const char* argument);

/// Fills in scales: root mean squares of the rows, as shares of the largest one, as halves have too little range for
/// small weights. \param w  [out, in] of type `dtype`. Throws what check_finite throws.
void find_row_scales(Allocator& allocator, Parallel& parallel, const void* w, kvq_dtype dtype, Matrix& matrix);

}  // namespace kvq::weights
