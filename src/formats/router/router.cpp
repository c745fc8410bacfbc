#include "formats/router/router.h"

#include "core/checks.h"
#include "core/error.h"
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

void check_router_shape(const RouterShape& shape, kvq_status status, const char* prefix) {
  check_model_shape(shape.n_layers, shape.kv_heads, shape.head_dim, status, prefix);
  const auto check = [&](int32_t value, int32_t low, int32_t high, const char* field) {
    check_range(value, low, high, status, prefix, field);
  };
  check(shape.pairing, KVQ_ROPE_NONE, KVQ_ROPE_INTERLEAVED, "rope");
  check(shape.sharing, 1, kMaxLayers, "sharing");
  check(shape.n_experts, 2, kMaxExperts, "n_experts");
}

void check_router_experts(const ModelRouter& router, kvq_status status, const char* prefix) {
  for (size_t i = 1; i < router.experts.size(); ++i) {
    const std::string name = format_pair_name(router.experts[i]);
    if (std::find(router.experts.begin(), router.experts.begin() + static_cast<std::ptrdiff_t>(i), router.experts[i]) !=
        router.experts.begin() + static_cast<std::ptrdiff_t>(i)) {
      fail(status, "%sexperts: %s occurs twice", prefix, name.c_str());
    }
    if (router.expert_bits[i] <= router.expert_bits[i - 1]) continue;
    fail(status, "%sexperts: %s has %.4g bits, more than %s before it, which has %.4g", prefix, name.c_str(),
         router.expert_bits[i], format_pair_name(router.experts[i - 1]).c_str(), router.expert_bits[i - 1]);
  }
}

void check_router_network(const RouterShape& shape, const RouterNetwork& network, int32_t group, kvq_status status) {
  for_each_router_array(shape, [&](const RouterArray& array) {
    check_numbers(network.*array.numbers, array.shape.elements(), KVQ_F16, status, "groups", group, array.name);
  });
}

int32_t layers_of_group(const RouterShape& shape, int32_t group) {
  return std::min(shape.sharing, shape.n_layers - group * shape.sharing);
}

double mean_bits(const ModelRouter& router, const GroupRouter& group) {
  double sum = 0.0;
  for (size_t i = 0; i < group.shares.size(); ++i) sum += group.shares[i] * router.expert_bits[i];
  return sum;
}

uint64_t router_bytes(const RouterShape& shape) {
  uint64_t numbers = 0;
  for_each_router_array(shape, [&](const RouterArray& array) { numbers += array.shape.elements(); });
  return numbers * sizeof(uint16_t);
}

}  // namespace kvq
