#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "threads.h"

namespace llama {

/** A weight matrix of a checkpoint, `values[rows, columns]`, widened to float. */
struct Matrix {
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<float> values;

  std::span<const float> row(int64_t i) const {
    return std::span(values).subspan(static_cast<size_t>(i * columns), static_cast<size_t>(columns));
  }
};

struct Linear {
  Matrix weight;            // [out, in]
  std::vector<float> bias;  // [out], or empty
};

/** y = x·Wᵀ with x `[n, in]` and y `[n, out]`. Results do not depend on the number of threads. */
void multiply(ThreadPool& threads, std::span<const float> x, const Matrix& weight, std::span<float> y);

/** y = x·Wᵀ + b. */
void apply(ThreadPool& threads, const Linear& linear, std::span<const float> x, std::span<float> y);

/** y += x·Wᵀ + b. */
void apply_and_add(ThreadPool& threads, const Linear& linear, std::span<const float> x, std::span<float> y);

}  // namespace llama
