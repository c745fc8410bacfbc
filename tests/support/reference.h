// Float64 brute force: rotary embedding, rotation of heads and attention, written from their definitions.
#pragma once

#include "kvq.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace kvq_test {

// Rotary embedding of a head; `inv_freq` has one angle per pair and position.
struct Rotation {
  kvq_rope pairing = KVQ_ROPE_NONE;
  std::vector<double> inv_freq;
  size_t begin = 0;  // first channel

  static Rotation from(const kvq_cache_options& options) {
    Rotation rotation{options.rope, {}, 0};
    if (options.rope == KVQ_ROPE_NONE) return rotation;
    const int32_t dim = options.rotary_dim == 0 ? options.head_dim : options.rotary_dim;
    for (int32_t j = 0; j < dim / 2; ++j) {
      rotation.inv_freq.push_back(options.inv_freq != nullptr ? double{options.inv_freq[j]}
                                                              : std::pow(double{options.rope_base}, -2.0 * j / dim));
    }
    return rotation;
  }

  size_t first_channel(size_t pair) const { return begin + (pairing == KVQ_ROPE_HALF ? pair : 2 * pair); }
  size_t second_channel(size_t pair) const {
    return begin + (pairing == KVQ_ROPE_HALF ? pair + inv_freq.size() : 2 * pair + 1);
  }

  // Pair j, read as x + iy, is multiplied by exp(i · position · inv_freq[j]).
  void apply(std::span<double> head, int32_t position) const {
    for (size_t j = 0; j < inv_freq.size(); ++j) {
      const double angle = position * inv_freq[j];
      double& x = head[first_channel(j)];
      double& y = head[second_channel(j)];
      const double rotated = x * std::cos(angle) - y * std::sin(angle);
      y = x * std::sin(angle) + y * std::cos(angle);
      x = rotated;
    }
  }
};

inline size_t largest_power_of_two_dividing(size_t n) { return n & (~n + 1); }

// Entry of the rotation of gain-shape pages and `+hadamard` integers, from its definition: the orthonormal
// Sylvester-Hadamard matrix within blocks of a power of two, times the orthonormal Hartley transform across blocks with
// Thue-Morse signs.
inline double rotation_entry(size_t dim, size_t row, size_t column) {
  const double pi = std::acos(-1.0);
  const size_t block = largest_power_of_two_dividing(dim);
  const size_t blocks = dim / block;
  const size_t to = row / block;
  const size_t from = column / block;
  const double angle = 2.0 * pi * static_cast<double>(to * from) / static_cast<double>(blocks);
  const int flips =
      __builtin_parityll(row % block & column % block) + __builtin_parityll(to) + __builtin_parityll(from);
  const double entry = (std::cos(angle) + std::sin(angle)) / std::sqrt(static_cast<double>(dim));
  return flips % 2 != 0 ? -entry : entry;
}

// A head times that matrix, one factor at a time.
inline std::vector<double> rotated_head(std::span<const double> head) {
  const size_t dim = head.size();
  const size_t block = largest_power_of_two_dividing(dim);
  std::vector<double> within(dim, 0.0);
  for (size_t i = 0; i < dim; ++i) {
    for (size_t j = 0; j < block; ++j) {
      const double x = head[i / block * block + j];
      within[i] += __builtin_parityll(i % block & j) != 0 ? -x : x;
    }
  }
  std::vector<double> rotated(dim, 0.0);
  for (size_t to = 0; to < dim; to += block) {
    for (size_t from = 0; from < dim; from += block) {
      const double factor = rotation_entry(dim, to, from);
      for (size_t i = 0; i < block; ++i) rotated[to + i] += factor * within[from + i];
    }
  }
  return rotated;
}

struct AttentionRule {
  double scale = 1.0;
  int32_t sliding_window = 0;                              // 0: all
  double logit_softcap = 0.0;                              // 0: none
  double sink = -std::numeric_limits<double>::infinity();  // a logit that only the denominator includes
  std::span<const uint32_t> mask = {};                     // which of the newest `mask_slots` tokens the query sees
  int32_t mask_slots = 0;
};

inline bool sees(const AttentionRule& rule, int32_t query_position, int32_t token_position) {
  if (token_position > query_position) return false;
  return rule.sliding_window == 0 || int64_t{token_position} > int64_t{query_position} - rule.sliding_window;
}

// Whether the query sees token `t` of `positions`.
inline bool sees_token(const AttentionRule& rule, int32_t query_position, std::span<const int32_t> positions,
                       size_t t) {
  const int64_t bit = static_cast<int64_t>(t) - (static_cast<int64_t>(positions.size()) - rule.mask_slots);
  if (rule.mask.empty() || bit < 0) return sees(rule, query_position, positions[t]);
  const bool is_set = (rule.mask[static_cast<size_t>(bit / 32)] >> (bit % 32) & 1) != 0;
  return is_set && (rule.sliding_window == 0 || positions[t] > int64_t{query_position} - rule.sliding_window);
}

struct Attended {
  std::vector<double> out;  // [channels of values]
  double lse;               // log Σ exp(logit), including the sink
};

// softmax(scale · q·kᵀ) v for one query head; k and v are [n, channels], q is already rotated. Zeros if it sees no
// token.
template <typename T>
Attended attend_to(const AttentionRule& rule, std::span<const double> q, int32_t position, std::span<const T> k,
                   std::span<const T> v, std::span<const int32_t> positions) {
  const size_t dim = q.size();
  const size_t value_dim = positions.empty() ? dim : v.size() / positions.size();
  std::vector<double> logits(positions.size(), -std::numeric_limits<double>::infinity());
  double largest = rule.sink;
  for (size_t t = 0; t < positions.size(); ++t) {
    if (!sees_token(rule, position, positions, t)) continue;
    double dot = 0.0;
    for (size_t c = 0; c < dim; ++c) dot += q[c] * static_cast<double>(k[t * dim + c]);
    logits[t] = rule.scale * dot;
    if (rule.logit_softcap > 0.0) logits[t] = rule.logit_softcap * std::tanh(logits[t] / rule.logit_softcap);
    largest = std::max(largest, logits[t]);
  }
  std::vector<double> out(value_dim, 0.0);
  if (std::isinf(largest)) return {out, largest};
  double sum = std::exp(rule.sink - largest);
  for (size_t t = 0; t < positions.size(); ++t) {
    const double weight = std::exp(logits[t] - largest);
    if (weight == 0.0) continue;
    sum += weight;
    for (size_t c = 0; c < value_dim; ++c) out[c] += weight * static_cast<double>(v[t * value_dim + c]);
  }
  for (double& x : out) x /= sum;
  return {out, largest + std::log(sum)};
}

// The same without the log-sum-exp.
template <typename T>
std::vector<double> attention(const AttentionRule& rule, std::span<const double> q, int32_t position,
                              std::span<const T> k, std::span<const T> v, std::span<const int32_t> positions) {
  return attend_to(rule, q, position, k, v, positions).out;
}

}  // namespace kvq_test
