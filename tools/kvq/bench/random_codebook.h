#pragma once

#include <cstdint>

#include "bench/random_layer.h"
#include "kvq.hpp"

namespace cli {

/// A codebook of one layer whose codes are random instead of trained, which takes most of a minute less. What attention
/// takes does not depend on them. \param bits  of a scalar: 1 or 2.
kvq::Codebook random_codebook(kvq_context* context, int32_t bits, const LayerShape& shape);

}  // namespace cli
