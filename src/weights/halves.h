// Matrices stored in FP16.
#pragma once

#include "core/memory.h"
#include "weights/matrix.h"
#include "weights/stepped_loops.h"

namespace kvq::weights {

/// Write tiles of FP16, [16 columns][16 rows]. Throws KVQ_E_ARGUMENT for a number that is none.
void store_halves(Allocator& allocator, SteppedLoops& loops, const void* w, kvq_dtype dtype, Matrix& matrix);
/// Time of all of it.
inline double halves_time(int32_t out, int32_t in) { return 8.0 * out * in; }

}  // namespace kvq::weights
