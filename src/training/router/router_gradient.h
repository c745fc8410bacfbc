// The router's network and its derivatives, for training.
#pragma once

#include "formats/router/router.h"
#include "formats/router/vector_math.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <span>

namespace kvq {

/// All parameters of a network in one array, in the order and the layout of RouterNetwork.
struct RouterLayout {
  size_t experts;
  size_t head_dim;

  size_t wide() const { return experts * head_dim; }
  size_t total() const { return 2 * wide() + experts * experts; }
  size_t w1() const { return 0; }
  size_t w2() const { return wide(); }
  size_t w3() const { return 2 * wide(); }
};

/// Values of a token's forward pass that the backward pass needs.
template <typename Real>
struct RouterPass {
  std::array<Real, kMaxExperts> gate;  // C·W1
  std::array<Real, kMaxExperts> up;    // C·W2
  std::array<Real, kMaxExperts> hidden;
  std::array<Real, kMaxExperts> probabilities;
};

/// MoQAE section 4.2: P = softmax((SiLU(C·W1) ⊙ (C·W2))·W3)
template <typename Real>
void router_forward(const RouterLayout& layout, const Real* parameters, const Real* key, RouterPass<Real>& pass) {
  const auto [experts, head_dim] = layout;
  for (size_t i = 0; i < experts; ++i) {
    pass.gate[i] = dot_product(parameters + layout.w1() + i * head_dim, key, head_dim);
    pass.up[i] = dot_product(parameters + layout.w2() + i * head_dim, key, head_dim);
    pass.hidden[i] = pass.gate[i] / (1 + std::exp(-pass.gate[i])) * pass.up[i];
  }
  Real largest = -std::numeric_limits<Real>::infinity();
  for (size_t to = 0; to < experts; ++to) {
    Real logit = 0;
    for (size_t from = 0; from < experts; ++from) {
      logit += pass.hidden[from] * parameters[layout.w3() + from * experts + to];
    }
    pass.probabilities[to] = logit;
    largest = std::max(largest, logit);
  }
  Real sum = 0;
  for (size_t to = 0; to < experts; ++to) sum += pass.probabilities[to] = std::exp(pass.probabilities[to] - largest);
  for (size_t to = 0; to < experts; ++to) pass.probabilities[to] /= sum;
}

/// Add the derivatives of a function of one token's outputs to `gradient`. `slopes` [experts]: its derivatives by the
/// softmax's inputs.
template <typename Real>
void router_backward(const RouterLayout& layout, const Real* parameters, const Real* key, const RouterPass<Real>& pass,
                     const Real* slopes, Real* gradient) {
  const auto [experts, head_dim] = layout;
  for (size_t i = 0; i < experts; ++i) {
    Real of_hidden = 0;
    for (size_t to = 0; to < experts; ++to) {
      of_hidden += slopes[to] * parameters[layout.w3() + i * experts + to];
      gradient[layout.w3() + i * experts + to] += slopes[to] * pass.hidden[i];
    }
    const Real sigmoid = 1 / (1 + std::exp(-pass.gate[i]));
    const Real silu_slope = sigmoid * (1 + pass.gate[i] * (1 - sigmoid));
    add_scaled(of_hidden * pass.up[i] * silu_slope, key, head_dim, gradient + layout.w1() + i * head_dim);
    add_scaled(of_hidden * pass.gate[i] * sigmoid, key, head_dim, gradient + layout.w2() + i * head_dim);
  }
}

/// Derivatives by the inputs of a softmax from those by its outputs.
template <typename Real>
void softmax_backward(const RouterPass<Real>& pass, size_t experts, const Real* of_probabilities, Real* slopes) {
  Real mean = 0;
  for (size_t i = 0; i < experts; ++i) mean += pass.probabilities[i] * of_probabilities[i];
  for (size_t i = 0; i < experts; ++i) slopes[i] = pass.probabilities[i] * (of_probabilities[i] - mean);
}

/// The MoQAE paper's loss of one page, λ·p_chosen·L_nll/B_chosen + (1 − λ)·Σ p_j·B_j/16, where p are the means of its
/// tokens' probabilities. The paper prints 16/B_j, which would reward more bits.
template <typename Real>
struct PaperLoss {
  double lambda;
  double nll;                    // L_nll, of the model
  std::span<const double> bits;  // B [experts]

  Real value(const Real* p) const {
    const size_t chosen = choose(p);
    double loss = lambda * static_cast<double>(p[chosen]) * nll / bits[chosen];
    for (size_t j = 0; j < bits.size(); ++j) loss += (1 - lambda) * static_cast<double>(p[j]) * bits[j] / 16;
    return static_cast<Real>(loss);
  }
  /// Derivatives by p; the choice is not differentiated.
  void slopes(const Real* p, Real* out) const {
    for (size_t j = 0; j < bits.size(); ++j) out[j] = static_cast<Real>((1 - lambda) * bits[j] / 16);
    const size_t chosen = choose(p);
    out[chosen] += static_cast<Real>(lambda * nll / bits[chosen]);
  }

 private:
  size_t choose(const Real* p) const { return static_cast<size_t>(std::max_element(p, p + bits.size()) - p); }
};

}  // namespace kvq
