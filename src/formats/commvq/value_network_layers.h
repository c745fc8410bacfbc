// Layers of the network that proposes bits, and their derivatives: in float, with the same results on every instruction
// set, and in double for tests. Every array has columns [rows][kValueBlock], one per vector.
#pragma once

#include "core/host_device.h"
#include "formats/commvq/value_kernels.h"
#include "formats/commvq/value_network.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace kvq::network {

/// See ValueKernels::multiply. Row r of `matrix` has its element d at r · row_stride + d · stride.
inline void multiply(const ValueKernels& kernels, const float* matrix, size_t row_stride, size_t stride, size_t rows,
                     size_t depth, const float* columns, float* out) {
  kernels.multiply({matrix, row_stride, stride}, rows, depth, columns, out);
}

inline void multiply(const ValueKernels& /*kernels*/, const double* matrix, size_t row_stride, size_t stride,
                     size_t rows, size_t depth, const double* columns, double* out) {
  for (size_t r = 0; r < rows; ++r) {
    for (size_t i = 0; i < kValueBlock; ++i) {
      double sum = 0;
      for (size_t d = 0; d < depth; ++d) sum += matrix[r * row_stride + d * stride] * columns[d * kValueBlock + i];
      out[r * kValueBlock + i] = sum;
    }
  }
}

/// eˣ for x ≤ 0. The C library's differs between processors, and codes would then differ too.
KVQ_HOST_DEVICE constexpr double exponential(double x) {
  constexpr double kLn2High = 0x1.62e42feep-1;  // its products with exponents are exact
  constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
  constexpr double kInverseFactorials[] = {
      1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720,
      1.0 / 120,       1.0 / 24,       1.0 / 6,       1.0 / 2,      1.0,         1.0};
  if (!(x > -700.0)) return 0.0;
  const auto exponent = static_cast<int64_t>(x * 1.4426950408889634 - 0.5);
  const double rest = (x - static_cast<double>(exponent) * kLn2High) - static_cast<double>(exponent) * kLn2Low;
  double sum = 0;
  for (const double factor : kInverseFactorials) sum = sum * rest + factor;
  return sum * std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52U);
}

/// GELU in its tanh form, x·σ(2·√(2/π)·(x + 0.044715·x³)), and its derivative.
struct Gelu {
  KVQ_HOST_DEVICE explicit Gelu(double x) {
    constexpr double kSlope = 1.5957691216057308;  // 2·√(2/π)
    constexpr double kCubic = 0.044715;
    const double t = kSlope * (x + kCubic * x * x * x);
    const double small = exponential(-std::fabs(t));
    const double sigmoid = (t < 0 ? small : 1.0) / (1.0 + small);
    value = x * sigmoid;
    slope = sigmoid + x * (small / ((1.0 + small) * (1.0 + small))) * kSlope * (1.0 + 3.0 * kCubic * x * x);
  }

  double value;
  double slope;
};

/// Added to the variance of a unit vector, 1 / width, as a fraction of it.
inline constexpr double kEpsilon = 1e-5;

/// out = (unit − mean) / deviation of each column: LayerNorm without gain and bias.
template <typename Real>
void standardize(const Real* unit, size_t width, Real* out) {
  const auto n = static_cast<double>(width);
  double sums[kValueBlock] = {};
  double squares[kValueBlock] = {};
  for (size_t c = 0; c < width; ++c) {
    for (size_t i = 0; i < kValueBlock; ++i) {
      const double x = unit[c * kValueBlock + i];
      sums[i] += x;
      squares[i] += x * x;
    }
  }
  for (size_t i = 0; i < kValueBlock; ++i) {
    sums[i] /= n;
    squares[i] = 1.0 / std::sqrt(std::max(squares[i] / n - sums[i] * sums[i], 0.0) + kEpsilon / n);
  }
  for (size_t c = 0; c < width; ++c) {
    for (size_t i = 0; i < kValueBlock; ++i) {
      const size_t at = c * kValueBlock + i;
      out[at] = static_cast<Real>((static_cast<double>(unit[at]) - sums[i]) * squares[i]);
    }
  }
}

/// out[r] = columns[r] · gain[r] + bias[r]; null `gain`: 1. May work in place.
template <typename Real>
void shift_rows(const Real* columns, size_t rows, const Real* gain, const Real* bias, Real* out) {
  for (size_t r = 0; r < rows; ++r) {
    const Real factor = gain == nullptr ? Real{1} : gain[r];
    for (size_t i = 0; i < kValueBlock; ++i) {
      out[r * kValueBlock + i] = columns[r * kValueBlock + i] * factor + bias[r];
    }
  }
}

/// Choice with the largest of a pair's outputs, the first of equal ones.
template <typename Real>
size_t largest(const Real* outputs, size_t stride) {
  size_t choice = 0;
  for (size_t k = 1; k < kPairChoices; ++k) {
    if (outputs[k * stride] > outputs[choice * stride]) choice = k;
  }
  return choice;
}

/// Set a pair's bits in their column: those of a choice, or the mean bits under probabilities of choices.
template <typename Real>
void set_bits(size_t choice, Real* bits) {
  bits[0] = static_cast<Real>(choice & 1U);
  bits[kValueBlock] = static_cast<Real>(choice >> 1U);
}

template <typename Real>
void set_mean_bits(const Real* probabilities, Real* bits) {
  bits[0] = probabilities[1 * kValueBlock] + probabilities[3 * kValueBlock];
  bits[kValueBlock] = probabilities[2 * kValueBlock] + probabilities[3 * kValueBlock];
}

/// softmax(outputs / temperature) of a pair, in place.
template <typename Real>
void soften(Real* outputs, double temperature) {
  const auto top = static_cast<double>(outputs[largest(outputs, kValueBlock) * kValueBlock]);
  double powers[kPairChoices];
  double sum = 0;
  for (size_t k = 0; k < kPairChoices; ++k) {
    powers[k] = exponential((static_cast<double>(outputs[k * kValueBlock]) - top) / temperature);
    sum += powers[k];
  }
  for (size_t k = 0; k < kPairChoices; ++k) outputs[k * kValueBlock] = static_cast<Real>(powers[k] / sum);
}

/// Gradient with respect to a pair's outputs, given that of its mean bits; replaces the probabilities.
template <typename Real>
void soften_backward(const Real* bits_gradient, double temperature, Real* probabilities) {
  const double low = bits_gradient[0];
  const double high = bits_gradient[kValueBlock];
  const double gradient[kPairChoices] = {0.0, low, high, low + high};
  double mean = 0;
  for (size_t k = 0; k < kPairChoices; ++k) mean += probabilities[k * kValueBlock] * gradient[k];
  for (size_t k = 0; k < kPairChoices; ++k) {
    Real& each = probabilities[k * kValueBlock];
    each = static_cast<Real>(each * (gradient[k] - mean) / temperature);
  }
}

/// Σ|w/|w| − u|² over the columns of `decoded` w and `unit` u; replaces w by its gradient times `weight`. A column that
/// decodes to zero counts 1 and has no gradient.
template <typename Real>
double renormalized_error(const Real* unit, size_t width, double weight, Real* decoded) {
  double norms[kValueBlock] = {};
  double products[kValueBlock] = {};
  double error = 0;
  for (size_t c = 0; c < width; ++c) {
    for (size_t i = 0; i < kValueBlock; ++i) {
      const double w = decoded[c * kValueBlock + i];
      norms[i] += w * w;
      products[i] += w * static_cast<double>(unit[c * kValueBlock + i]);
    }
  }
  for (size_t i = 0; i < kValueBlock; ++i) {
    norms[i] = std::sqrt(norms[i]);
    products[i] = norms[i] > 0 ? products[i] / norms[i] : 0;  // cosine
  }
  for (size_t c = 0; c < width; ++c) {
    for (size_t i = 0; i < kValueBlock; ++i) {
      Real& w = decoded[c * kValueBlock + i];
      const double u = unit[c * kValueBlock + i];
      const double direction = norms[i] > 0 ? w / norms[i] : 0;
      error += (direction - u) * (direction - u);
      w = static_cast<Real>(norms[i] > 0 ? 2 * weight * (products[i] * direction - u) / norms[i] : 0);
    }
  }
  return error;
}

}  // namespace kvq::network
