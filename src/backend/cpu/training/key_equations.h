// Normal equations of all stages of key codes, given the indices.
#pragma once

#include "backend/cpu/training/key_tokens.h"
#include "core/parallel.h"

#include <complex>
#include <cstdint>
#include <span>

namespace kvq::keys {

/// Implementation of KeySample::add_equations(). `indices`: [n][stages]{a, b}.
void add_equations(Parallel& parallel, const Tokens& residuals, const uint8_t* indices, int32_t stages, int32_t codes,
                   std::span<std::complex<double>> system, std::span<std::complex<double>> sides);

}  // namespace kvq::keys
