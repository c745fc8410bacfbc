#include "api/trained_handle.h"
#include "formats/router/model_router.h"
#include "io/trained_files.h"

#include <algorithm>

using namespace kvq;
using namespace kvq::api;

namespace {

kvq_router_info describe(const kvq_router& handle) {
  const ModelRouter& router = *handle.shared;
  kvq_router_info info{};
  info.n_layers = router.shape.n_layers;
  info.kv_heads = router.shape.kv_heads;
  info.head_dim = router.shape.head_dim;
  info.rope = router.shape.pairing;
  info.sharing = router.shape.sharing;
  info.groups = router.shape.groups();
  info.n_experts = router.shape.n_experts;
  info.method = static_cast<kvq_router_method>(router.method);
  info.loss_weight = router.lambda;
  info.mean_bits = router.mean_bits;
  info.tolerance = router.tolerance;
  info.accuracy = router.accuracy;
  info.tokens = router.tokens;
  info.seed = router.seed;
  info.model_id = router.model_id;
  info.bytes = router_bytes(router.shape);
  info.experts = handle.experts.c_str();
  info.note = router.note.c_str();
  return info;
}

kvq_router_group_info describe_group(const ModelRouter& router, int32_t index) {
  const GroupRouter& group = router.groups[static_cast<size_t>(index)];
  kvq_router_group_info info{};
  info.first_layer = index * router.shape.sharing;
  info.last_layer = info.first_layer + layers_of_group(router.shape, index) - 1;
  info.mean_bits = mean_bits(router, group);
  info.accuracy = group.accuracy;
  std::copy(group.shares.begin(), group.shares.end(), info.shares);
  return info;
}

}  // namespace

kvq_router::kvq_router(kvq_context& owner, std::shared_ptr<const ModelRouter> router)
    : TrainedHandle(owner, std::move(router)), experts(io::experts_text(owner.allocator, shared->experts)) {}

kvq_status kvq_router_load(kvq_context* context, const void* buffer, size_t size, kvq_router** result,
                           kvq_error* error) {
  return load_trained(context, buffer, size, result, error, io::read_router);
}

kvq_status kvq_router_save(const kvq_router* router, void* buffer, size_t capacity, size_t* size, kvq_error* error) {
  return save_trained(router, "router", buffer, capacity, size, error, io::router_file);
}

kvq_status kvq_router_describe(const kvq_router* router, kvq_router_info* info, kvq_error* error) {
  return guarded(error, [&] {
    require(router, "router");
    write_struct(info, describe(*router), "info");
  });
}

kvq_status kvq_router_describe_group(const kvq_router* router, int32_t group, kvq_router_group_info* info,
                                     kvq_error* error) {
  return guarded(error, [&] {
    require(router, "router");
    require_range(group, 0, router->shared->shape.groups() - 1, "group");
    write_struct(info, describe_group(*router->shared, group), "info");
  });
}

void kvq_router_destroy(kvq_router* router) { destroy(router); }
