// The router of MoQAE: chooses each page's sealed format by its keys.
#pragma once

#include "core/memory.h"
#include "core/tensor_shape.h"
#include "formats/format_name.h"
#include "kvq.h"

#include <cstdint>
#include <span>

namespace kvq {

inline constexpr int32_t kMaxExperts = KVQ_MAX_EXPERTS;
inline constexpr size_t kMaxRouterNote = 4096;

/// Model dimensions of a router.
struct RouterShape {
  int32_t n_layers = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t pairing = KVQ_ROPE_HALF;  // kvq_rope pairing of the keys, which the router sees before rotation
  int32_t sharing = 3;              // successive layers that share the decisions of the first one
  int32_t n_experts = 0;

  bool operator==(const RouterShape&) const = default;

  int32_t groups() const { return (n_layers + sharing - 1) / sharing; }
  int32_t group_of(int32_t layer) const { return layer / sharing; }
  /// The layer whose keys decide for `layer`.
  int32_t deciding_layer(int32_t layer) const { return layer / sharing * sharing; }
};

/// P = softmax((SiLU(C·W1) ⊙ (C·W2))·W3) for a token's key C, before RoPE, with one probability per expert (MoQAE
/// section 4.2, with W3 square).
struct RouterNetwork {
  explicit RouterNetwork(Allocator& allocator) : w1(allocator), w2(w1.get_allocator()), w3(w1.get_allocator()) {}

  Vector<float> w1;  // [n_experts, head_dim]: W1 transposed
  Vector<float> w2;  // [n_experts, head_dim]: W2 transposed
  Vector<float> w3;  // [n_experts, n_experts]: from, to
};

/// The router of one group of layers, and its statistics on the training texts.
struct GroupRouter {
  explicit GroupRouter(Allocator& allocator) : network(allocator), shares(allocator) {}

  RouterNetwork network;
  Vector<double> shares;  // [n_experts] shares of the pages
  double accuracy = 0.0;  // share of the pages that get the expert of their label
};

/// Training method of a router.
enum class RouterMethod : uint8_t { kLabel, kPaper };

/// Routers for the layers of one model.
struct ModelRouter {
  explicit ModelRouter(Allocator& allocator)
      : experts(allocator), expert_bits(allocator), groups(allocator), note(allocator) {}

  RouterShape shape;
  Vector<FormatPair> experts;  // [n_experts], more bits first
  Vector<double> expert_bits;  // [n_experts] effective bits per scalar
  Vector<GroupRouter> groups;  // [shape.groups()]
  RouterMethod method = RouterMethod::kLabel;
  double mean_bits = 0.0;  // per scalar in the training pages, as the router stores them
  double lambda = 0.0;     // weight in the paper's loss; 0 for labels
  double tolerance = 0.0;  // for labels: the largest acceptable error of an expert; 0 for the paper's loss
  double accuracy = 0.0;   // share of the pages that get the expert of their label
  int64_t tokens = 0;      // tokens in the training set
  uint64_t seed = 1;
  uint64_t model_id = 0;
  String note;
};

/// Add one to `votes` [n_experts] for every token's most probable expert. Ties go to the first, which has more bits.
/// `keys`: [tokens, head_dim], before RoPE.
void add_votes(const RouterNetwork& network, std::span<const float> keys, std::span<int32_t> votes);

/// The expert with the most votes; ties go to the first, which has the most bits.
int32_t elected(std::span<const int32_t> votes);

/// Throws `status` with a field's name, as in options and files, and its value. `prefix` precedes the name.
void check_router_shape(const RouterShape& shape, kvq_status status, const char* prefix);

/// Throws `status` if two experts are equal, or one has more bits than the one before it.
void check_router_experts(const ModelRouter& router, kvq_status status, const char* prefix);

/// Throws `status` if an array has the wrong length, or a number is not finite in FP16.
void check_router_network(const RouterShape& shape, const RouterNetwork& network, int32_t group, kvq_status status);

/// Number of layers in a group.
int32_t layers_of_group(const RouterShape& shape, int32_t group);

/// Mean bits per scalar when experts get these shares of the pages.
double mean_bits(const ModelRouter& router, const GroupRouter& group);

using RouterNumbers = Vector<float> RouterNetwork::*;

/// One array of a network; FP16 in files.
struct RouterArray {
  const char* name;
  TensorShape shape;
  RouterNumbers numbers;
};

/// Calls `use` with every array of a network.
template <typename Use>
void for_each_router_array(const RouterShape& shape, const Use& use) {
  use(RouterArray{"w1", {shape.n_experts, shape.head_dim}, &RouterNetwork::w1});
  use(RouterArray{"w2", {shape.n_experts, shape.head_dim}, &RouterNetwork::w2});
  use(RouterArray{"w3", {shape.n_experts, shape.n_experts}, &RouterNetwork::w3});
}

/// Bytes of one network in a file.
uint64_t router_bytes(const RouterShape& shape);

}  // namespace kvq
