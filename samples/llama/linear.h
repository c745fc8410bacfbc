#pragma once

#include <span>

#include "array.h"
#include "threads.h"

namespace llama {

/// y = x·Wᵀ + b with x `[n, in]` and y `[n, out]` in host memory. Results do not depend on the number of threads.
void apply(ThreadPool& threads, const Linear& linear, std::span<const float> x, std::span<float> y);

/// y += x·Wᵀ + b.
void apply_and_add(ThreadPool& threads, const Linear& linear, std::span<const float> x, std::span<float> y);

}  // namespace llama
