// Validity of a model's routers, whatever their source.
#pragma once

#include "core/tensor_shape.h"
#include "formats/router/router.h"

namespace kvq {

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

/// One array of a network; FP16 in files.
struct RouterArray {
  const char* name;
  TensorShape shape;
  Vector<float> RouterNetwork::*numbers;
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
