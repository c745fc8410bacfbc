#include "router/router.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace kvq {
namespace {

constexpr size_t kLanes = 8;

/// Sums of eight lanes, the same on every machine.
float dot(const float* a, const float* b, size_t n) {
  std::array<float, kLanes> sums{};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  for (; i < n; ++i) sums[i % kLanes] += a[i] * b[i];
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

}  // namespace

void add_votes(const RouterNetwork& network, std::span<const float> keys, std::span<int32_t> votes) {
  const size_t experts = votes.size();
  const size_t head_dim = network.w1.size() / experts;
  for (size_t token = 0; token < keys.size() / head_dim; ++token) {
    const float* key = keys.data() + token * head_dim;
    std::array<float, kMaxExperts> hidden;
    for (size_t i = 0; i < experts; ++i) {
      const float gate = dot(key, network.w1.data() + i * head_dim, head_dim);
      const float silu = gate / (1.0F + std::exp(-gate));
      hidden[i] = silu * dot(key, network.w2.data() + i * head_dim, head_dim);
    }
    // The softmax keeps the order.
    std::array<float, kMaxExperts> logits;
    for (size_t to = 0; to < experts; ++to) {
      logits[to] = 0.0F;
      for (size_t from = 0; from < experts; ++from) logits[to] += hidden[from] * network.w3[from * experts + to];
    }
    const auto end = logits.begin() + static_cast<std::ptrdiff_t>(experts);
    ++votes[static_cast<size_t>(std::max_element(logits.begin(), end) - logits.begin())];
  }
}

int32_t elected(std::span<const int32_t> votes) {
  return static_cast<int32_t>(std::max_element(votes.begin(), votes.end()) - votes.begin());
}

}  // namespace kvq
