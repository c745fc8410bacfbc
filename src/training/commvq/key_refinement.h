// All stages of codes for keys at once: with the indices fixed, every code solves one system of linear equations.
#pragma once

#include "backend/key_sample.h"
#include "core/memory.h"

#include <span>

namespace kvq::keys {

/// Change the codes z, [stages][codes][group]{re, im}, that `encoder` has and `sample` was encoded with, to minimise
/// Σ weight · ‖key − Σ_r (z[r][a_r] + i·z[r][b_r])‖² + ridge · Σ ‖z − z before‖².
void refine_codes(Allocator& allocator, KeySample& sample, const KeyEncoder& encoder, double ridge, std::span<float> z);

}  // namespace kvq::keys
