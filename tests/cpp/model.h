// A small attention layer through kvq.hpp, and its expected outputs in float64.
#pragma once

#include <doctest/doctest.h>

#include "kvq.hpp"
#include "support/random.h"
#include "support/reference.h"

#include <string>
#include <vector>

inline constexpr int32_t kQueryHeads = 4;
inline constexpr int32_t kKvHeads = 2;
inline constexpr int32_t kHeadDim = 16;
inline constexpr size_t kTokenScalars = size_t{kKvHeads} * kHeadDim;
inline constexpr size_t kQueryScalars = size_t{kQueryHeads} * kHeadDim;

inline kvq_cache_options small_options(int32_t n_layers = 1) {
  auto options = kvq::initialised<kvq_cache_options>();
  options.n_layers = n_layers;
  options.q_heads = kQueryHeads;
  options.kv_heads = kKvHeads;
  options.head_dim = kHeadDim;
  return options;
}

inline kvq::Cache small_cache(const kvq::Context& context, const std::string& policy = "fp16", int32_t n_layers = 1) {
  return kvq::Cache(context, small_options(n_layers), kvq::Policy::load(context, policy));
}

/// Keys or values of `n` tokens.
inline std::vector<float> tokens(int32_t n, uint64_t seed) {
  return kvq_test::normal_tensor(static_cast<size_t>(n) * kTokenScalars, seed);
}

inline std::vector<float> queries(int32_t n, uint64_t seed) {
  return kvq_test::normal_tensor(static_cast<size_t>(n) * kQueryScalars, seed);
}

inline void fill(kvq::Sequence& sequence, int32_t n, uint64_t seed = 1, int32_t layer = 0) {
  sequence.append(layer, n, tokens(n, seed), tokens(n, seed + 1));
}

/// Attention of one row of queries at `position` over the decoded sequence: `[q_heads]` heads.
inline std::vector<kvq_test::Attended> brute_force(const kvq::Sequence& sequence, std::span<const float> row,
                                                   int32_t position, kvq_test::AttentionRule rule = {},
                                                   std::span<const float> sinks = {}) {
  const kvq_test::Rotation rotation = kvq_test::Rotation::from(small_options());
  rule.scale = 0.25;  // 1 / sqrt(kHeadDim)
  std::vector<kvq_test::Attended> heads;
  for (int32_t head = 0; head < kQueryHeads; ++head) {
    const int32_t kv_head = head / (kQueryHeads / kKvHeads);
    const int32_t n = sequence.slots(0, kv_head);
    std::vector<float> k(static_cast<size_t>(n) * kHeadDim), v(k.size());
    std::vector<int32_t> positions(static_cast<size_t>(n));
    sequence.decode(0, kv_head, 0, n, k, v, positions);
    const auto of_head = row.subspan(static_cast<size_t>(head) * kHeadDim, kHeadDim);
    std::vector<double> q(of_head.begin(), of_head.end());
    rotation.apply(q, position);
    if (!sinks.empty()) rule.sink = double{sinks[static_cast<size_t>(head)]};
    heads.push_back(kvq_test::attend_to<float>(rule, q, position, k, v, positions));
  }
  return heads;
}

/// Largest difference of a row of outputs from brute force.
inline double difference(std::span<const float> row, const std::vector<kvq_test::Attended>& expected) {
  double worst = 0.0;
  for (size_t i = 0; i < row.size(); ++i) {
    worst = std::max(worst, std::abs(double{row[i]} - expected[i / kHeadDim].out[i % kHeadDim]));
  }
  return worst;
}

/// The Error that `call` throws.
template <class Call>
kvq::Error failure_of(Call call) {
  try {
    call();
  } catch (const kvq::Error& error) {
    return error;
  }
  return {KVQ_OK, "nothing was thrown"};
}

#define CHECK_FAILS(status_, words, ...)                                 \
  do {                                                                   \
    const kvq::Error failure = failure_of([&] { (void)(__VA_ARGS__); }); \
    CHECK(failure.status() == (status_));                                \
    CHECK(std::string(failure.what()).find(words) != std::string::npos); \
    CHECK(std::string(failure.name()) == kvq::status_name(status_));     \
  } while (false)
