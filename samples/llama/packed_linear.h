#pragma once

#include <span>

#include "device.h"

namespace llama {

/// y = x·Wᵀ + b of packed layers with x `[n, in]` and y `[n, out]` in host memory, on the threads of their context.
void apply_packed(std::span<const Product> products, std::span<const float> x);

}  // namespace llama
