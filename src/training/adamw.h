// AdamW (Loshchilov and Hutter, 2019).
#pragma once

#include "core/memory.h"

#include <cmath>
#include <cstddef>
#include <span>

namespace kvq {

struct AdamWOptions {
  double first_decay = 0.9;  // β₁
  double second_decay = 0.999;
  double epsilon = 1e-8;
};

/// AdamW's state of `size` parameters.
class AdamW {
 public:
  AdamW(Allocator& allocator, size_t size, const AdamWOptions& options = {})
      : options_(options), mean_(size, allocator), square_(size, allocator) {}

  /// Begin a step; update() then takes every parameter once, in ranges from `begin` on, on any thread.
  void begin_step() {
    first_power_ *= options_.first_decay;
    second_power_ *= options_.second_decay;
  }

  void update(size_t begin, std::span<float> parameters, std::span<const float> gradient, double rate,
              double weight_decay) noexcept {
    const auto first = static_cast<float>(options_.first_decay);
    const auto second = static_cast<float>(options_.second_decay);
    const auto step = static_cast<float>(rate / (1 - first_power_));
    const auto correction = static_cast<float>(1 / (1 - second_power_));
    const auto epsilon = static_cast<float>(options_.epsilon);
    const auto kept = static_cast<float>(1 - rate * weight_decay);
    float* mean = mean_.data() + begin;
    float* square = square_.data() + begin;
    for (size_t i = 0; i < parameters.size(); ++i) {
      mean[i] = first * mean[i] + (1 - first) * gradient[i];
      square[i] = second * square[i] + (1 - second) * gradient[i] * gradient[i];
      parameters[i] = kept * parameters[i] - step * mean[i] / (std::sqrt(correction * square[i]) + epsilon);
    }
  }

 private:
  AdamWOptions options_;
  Vector<float> mean_;
  Vector<float> square_;
  double first_power_ = 1;  // β₁ᵗ
  double second_power_ = 1;
};

}  // namespace kvq
