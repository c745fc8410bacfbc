#pragma once

#include "backend/cpu/attend/kernels.h"
#include "formats/side_format.h"

namespace kvq::cpu {

/// The reference as kernels.
PageKernels gain_shape_kernels(Kind kind);

}  // namespace kvq::cpu
