// Least squares for codes of keys with a given assignment: of one stage, and of all stages together.
#pragma once

#include "backend/key_sample.h"
#include "core/memory.h"
#include "formats/commvq/key_encoder.h"

#include <span>

namespace kvq::keys {

/// Σ W · ‖x − centre‖², given Σ W · ‖x‖².
double assignment_error(const KeyStatistics& statistics, const KeyEncoder& stage, double energy);

/// Find the codes z, [codes][group]{re, im}, that minimise Σ W·‖x − (z_a + i·z_b)‖² + floor · Σ ‖z − z before‖².
void fit_codes(const KeyStatistics& statistics, double floor, std::span<float> z);

/// Change the codes z, [stages][codes][group]{re, im}, of `encoder`, with which `sample` was encoded, to minimise
/// Σ weight · ‖key − Σ_r (z[r][a_r] + i·z[r][b_r])‖² + ridge · Σ ‖z − z before‖².
void refine_codes(Allocator& allocator, KeySample& sample, const KeyEncoder& encoder, double ridge, std::span<float> z);

}  // namespace kvq::keys
