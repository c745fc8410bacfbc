#pragma once

#include "device.h"
#include "threads.h"

namespace llama {

/// y = x / rms(x) · weight for each row of `weight.size()` numbers; `x` and `y` may be the same.
void rms_norm(std::span<const float> x, std::span<const float> weight, float epsilon, std::span<float> y);

/// gate = silu(gate) · up.
void swiglu(std::span<float> gate, std::span<const float> up);
/// gate = gelu(gate) · up, approximated by tanh.
void geglu(std::span<float> gate, std::span<const float> up);

/// −log softmax(logits)[token].
double negative_log_likelihood(std::span<const float> logits, int32_t token);

/// y = x·Wᵀ + b + beta·y with x `[n, in]` and y `[n, out]` in host memory. Weights are multiplied as they are stored
/// or, for several rows, widened a little at a time. Results do not depend on the number of threads.
void multiply(ThreadPool& threads, const Linear& linear, std::span<const float> x, float beta, std::span<float> y);

/// sums = xᵀ·x + beta·sums with x `[n, in]` and sums `[in, in]` in host memory, of whose lower triangle only what
/// blocks on the diagonal hold is computed. Results do not depend on the number of threads.
void add_gram(ThreadPool& threads, std::span<const float> x, int64_t in, float beta, std::span<float> sums);

/// The CPU: host memory, and `threads`, which must outlive the device. Results do not depend on their number.
std::unique_ptr<Device> make_cpu_device(ThreadPool& threads);

}  // namespace llama
