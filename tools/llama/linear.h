#pragma once

#include <cstdint>
#include <span>

#include "array.h"
#include "threads.h"

namespace llama {

/// y = x·Wᵀ + b + beta·y with x `[n, in]` and y `[n, out]` in host memory. Weights are multiplied as they are stored
/// or, for several rows, widened a little at a time. Results do not depend on the number of threads.
void multiply(ThreadPool& threads, const Linear& linear, std::span<const float> x, float beta, std::span<float> y);

/// sums = xᵀ·x + beta·sums with x `[n, in]` and sums `[in, in]` in host memory, of whose lower triangle only what
/// blocks on the diagonal hold is computed. Results do not depend on the number of threads.
void add_gram(ThreadPool& threads, std::span<const float> x, int64_t in, float beta, std::span<float> sums);

}  // namespace llama
