#pragma once

#include <cstdint>
#include <span>

namespace llama {

/// y = x / rms(x) · weight for each row of `weight.size()` numbers; `x` and `y` may be the same.
void rms_norm(std::span<const float> x, std::span<const float> weight, float epsilon, std::span<float> y);

/// gate = silu(gate) · up.
void swiglu(std::span<float> gate, std::span<const float> up);

/// −log softmax(logits)[token].
double negative_log_likelihood(std::span<const float> logits, int32_t token);

}  // namespace llama
