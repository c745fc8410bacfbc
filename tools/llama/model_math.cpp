#include "model_math.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

namespace llama {
namespace {

// Sums run in this many lanes so that the compiler may vectorise them without reordering.
constexpr size_t kLanes = 16;

template <class Term>
float sum_of(size_t n, Term term) {
  std::array<float, kLanes> lanes{};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  }
  float sum = 0.0f;
  for (; i < n; ++i) sum += term(i);
  for (const float lane : lanes) sum += lane;
  return sum;
}

float maximum(std::span<const float> x) {
  std::array<float, kLanes> lanes;
  lanes.fill(x[0]);
  size_t i = 0;
  for (; i + kLanes <= x.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] = lanes[lane] < x[i + lane] ? x[i + lane] : lanes[lane];
  }
  float result = *std::max_element(lanes.begin(), lanes.end());
  for (; i < x.size(); ++i) result = std::max(result, x[i]);
  return result;
}

// e^x to about 2e-7, saturating outside ±87; unlike std::exp it vectorises. e^x = 2^n · e^r with |r| ≤ ln2 / 2.
inline float exponential(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 · 2^23: adding it leaves the nearest integer in the low mantissa bits
  constexpr float kLn2High = 0.693359375f;
  constexpr float kLn2Low = -2.12194440e-4f;
  x = x < -87.0f ? -87.0f : x;
  x = x > 87.0f ? 87.0f : x;
  const float shifted = x * 1.44269504f + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float p = 1.0f / 5040.0f;
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const uint32_t exponent = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kRound) + 127u;
  return p * std::bit_cast<float>(exponent << 23);
}

}  // namespace

void rms_norm(std::span<const float> x, std::span<const float> weight, float epsilon, std::span<float> y) {
  const size_t width = weight.size();
  for (size_t begin = 0; begin < x.size(); begin += width) {
    const float* row = x.data() + begin;
    float* out = y.data() + begin;
    const float mean_square = sum_of(width, [row](size_t i) { return row[i] * row[i]; }) / static_cast<float>(width);
    const float factor = 1.0f / std::sqrt(mean_square + epsilon);
    for (size_t i = 0; i < width; ++i) out[i] = row[i] * factor * weight[i];
  }
}

void swiglu(std::span<float> gate, std::span<const float> up) {
  float* g = gate.data();
  const float* u = up.data();
  const size_t n = gate.size();
  for (size_t i = 0; i < n; ++i) g[i] = g[i] / (1.0f + exponential(-g[i])) * u[i];
}

double negative_log_likelihood(std::span<const float> logits, int32_t token) {
  const float top = maximum(logits);
  const float* x = logits.data();
  const float sum = sum_of(logits.size(), [x, top](size_t i) { return exponential(x[i] - top); });
  return std::log(static_cast<double>(sum)) + top - logits[static_cast<size_t>(token)];
}

}  // namespace llama
