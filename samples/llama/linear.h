#pragma once

#include <span>

#include "array.h"
#include "threads.h"

namespace llama {

/// y = x·Wᵀ + b + beta·y with x `[n, in]` and y `[n, out]` in host memory. Results do not depend on the number of
/// threads.
void multiply(ThreadPool& threads, const Linear& linear, std::span<const float> x, float beta, std::span<float> y);

}  // namespace llama
