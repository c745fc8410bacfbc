// What must hold for the routers of a model, wherever they come from.
#pragma once

#include "core/tensor_shape.h"
#include "formats/router/router.h"

namespace kvq {

/// Throws `status` with the name of a field, as in options and files, and its value. `prefix` goes before the name.
void check_router_shape(const RouterShape& shape, kvq_status status, const char* prefix);

/// Throws `status` unless experts are of any use: no two are the same, none has more bits than the one before it.
void check_router_experts(const ModelRouter& router, kvq_status status, const char* prefix);

/// Throws `status` if an array has another length than it should, or a number is not finite in FP16.
void check_router_network(const RouterShape& shape, const RouterNetwork& network, int32_t group, kvq_status status);

/// The layers of a group.
int32_t layers_of_group(const RouterShape& shape, int32_t group);

/// Mean bits of a scalar when experts get these shares of the pages.
double mean_bits(const ModelRouter& router, const GroupRouter& group);

/// One array of a network, which is FP16 in files.
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
