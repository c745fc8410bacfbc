#include "formats/router/router.h"

#include "formats/router/vector_math.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace kvq {
void add_votes(const RouterNetwork& network, std::span<const float> keys, std::span<int32_t> votes) {
  const size_t experts = votes.size();
  const size_t head_dim = network.w1.size() / experts;
  for (size_t token = 0; token < keys.size() / head_dim; ++token) {
    const float* key = keys.data() + token * head_dim;
    std::array<float, kMaxExperts> hidden;
    for (size_t i = 0; i < experts; ++i) {
      const float gate = dot_product(key, network.w1.data() + i * head_dim, head_dim);
      const float silu = gate / (1.0F + std::exp(-gate));
      hidden[i] = silu * dot_product(key, network.w2.data() + i * head_dim, head_dim);
    }
    // Softmax is monotonic, so logits suffice.
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
