#pragma once

#include <string>

#include "bench/random_layer.h"
#include "options/spec.h"

namespace cli {

/// As load_spec, but also `commvq-1` and `commvq-2`, with `,head` after them for codes of each head, and
/// `,attention=WAY` for the way of attention of a policy, gain-shape formats with a number of centres, like `gs2-256`,
/// and `moqae`, or `moqae-BITS` for so many bits in the mean: codebooks, centres and routers that were trained on
/// random numbers, of little use but as fast as others.
Spec load_layer_spec(kvq_context* context, const std::string& spec, const LayerShape& shape);

}  // namespace cli
