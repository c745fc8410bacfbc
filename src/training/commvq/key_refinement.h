// All stages of codes for keys at once: with the indices fixed, every code solves one system of linear equations.
#pragma once

#include "training/commvq/key_tokens.h"

#include <cstdint>
#include <span>

namespace kvq::keys {

/// Change the codes z, [stages][codes][group]{re, im}, to minimise Σ weight · ‖key − Σ_r (z[r][a_r] + i·z[r][b_r])‖² +
/// ridge · Σ ‖z − z before‖².
///
/// \param residuals  what the codes as they are leave of the keys
/// \param indices    [tokens][stages]{a, b}
void refine_codes(Allocator& allocator, Parallel& parallel, const Tokens& residuals, const uint8_t* indices,
                  int32_t stages, int32_t codes, double ridge, std::span<float> z);

}  // namespace kvq::keys
