// One stage of codes for keys: the codes that fit an assignment best.
#pragma once

#include "backend/key_sample.h"
#include "formats/commvq/key_encoder.h"

#include <span>

namespace kvq::keys {

/// Σ W · ‖x − centre‖², given Σ W · ‖x‖².
double assignment_error(const KeyStatistics& statistics, const KeyEncoder& stage, double energy);

/// The codes z, [codes][group]{re, im}, that minimise Σ W·‖x − (z_a + i·z_b)‖² + floor · Σ ‖z − z before‖².
void fit_codes(const KeyStatistics& statistics, double floor, std::span<float> z);

}  // namespace kvq::keys
