#include "formats/router/router.h"
#include "api/trained.h"
#include "io/trained_files.h"
#include "training/router/router_trainer.h"

#include <algorithm>
#include <cmath>

using namespace kvq;
using namespace kvq::api;

struct kvq_router_trainer : RouterTrainer {
  kvq_router_trainer(kvq_context& owner, const kvq_cache_options& cache, const Policy& policy,
                     const CacheTraining& training, const RouterTrainerOptions& options)
      : RouterTrainer(owner.allocator, owner.parallel, *owner.backend, cache, policy, training, options),
        context(owner) {}

  Kept<kvq_context> context;
};

namespace {

kvq_router_info describe_router(const kvq_router& handle) {
  const ModelRouter& router = *handle.shared;
  auto info = describe_trained<kvq_router_info>(router, router.shape.pairing, router_bytes(router.shape));
  info.sharing = router.shape.sharing;
  info.groups = router.shape.groups();
  info.n_experts = router.shape.n_experts;
  info.method = static_cast<kvq_router_method>(router.method);
  info.loss_weight = router.lambda;
  info.mean_bits = router.mean_bits;
  info.tolerance = router.tolerance;
  info.accuracy = router.accuracy;
  info.tokens = router.tokens;
  info.experts = handle.experts.c_str();
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

constexpr int32_t kMaxSharing = 65536;
constexpr int32_t kMaxEpochs = 10000;

kvq_router_trainer_options default_router_trainer_options() {
  kvq_router_trainer_options options{};
  options.method = KVQ_ROUTER_LABEL;
  options.sharing = 3;
  options.loss_weight = 0.5;
  options.learning_rate = 3e-4;
  options.seed = 1;
  return options;
}

RouterTrainerOptions checked(const kvq_router_trainer_options& options) {
  require_range(options.method, KVQ_ROUTER_LABEL, KVQ_ROUTER_PAPER, "options->method");
  require_range(options.sharing, 1, kMaxSharing, "options->sharing");
  require_range(options.epochs, 0, kMaxEpochs, "options->epochs");
  require_within(options.loss_weight, 0.0, 1.0, "options->loss_weight");
  if (!(options.learning_rate > 0.0 && options.learning_rate <= 1.0)) {
    fail(KVQ_E_ARGUMENT, "options->learning_rate is %g, must be above 0 and at most 1", options.learning_rate);
  }
  RouterTrainerOptions result;
  result.method = static_cast<RouterMethod>(options.method);
  result.sharing = options.sharing;
  result.epochs = options.epochs;
  result.mean_bits = options.mean_bits;
  result.lambda = options.loss_weight;
  result.learning_rate = options.learning_rate;
  take_common(options, kMaxRouterNote, result);
  return result;
}

/// Check that a cache can be made with each expert alone; returns the trained data that experts need.
CacheTraining check_experts(kvq_context& context, const kvq_cache_options& cache, const kvq_policy& policy) {
  CacheTraining training;
  for (const FormatPair& expert : policy.experts) {
    kvq_policy stored(context, Policy(context.allocator));
    stored.keys = expert.keys;
    stored.values = expert.values;
    kvq_cache* made = nullptr;
    kvq_error error;
    kvq_error_init(&error, sizeof(error));
    const kvq_status status = kvq_cache_create(&context, &cache, &stored, &made, &error);
    if (status != KVQ_OK) fail(status, "cache with expert %s: %s", format_pair_name(expert).c_str(), error.message);
    const bool another =
        made->training.pages != nullptr && training.pages != nullptr && made->training.pages != training.pages;
    if (made->training.pages != nullptr) training = made->training;
    kvq_cache_destroy(made);
    if (another)
      fail(KVQ_E_UNSUPPORTED, "policy has experts that need cache->codebook and others that need cache->centres");
  }
  return training;
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
  return described(router, "router", info, error, describe_router);
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

void kvq_router_trainer_options_init(kvq_router_trainer_options* options, size_t size) {
  init_struct(options, size, default_router_trainer_options());
}

kvq_status kvq_router_trainer_create(kvq_context* context, const kvq_cache_options* cache, const kvq_policy* policy,
                                     const kvq_router_trainer_options* options, kvq_router_trainer** result,
                                     kvq_error* error) {
  return created(result, error, [&] {
    require(context, "context");
    const kvq_cache_options shape = read_struct(cache, default_cache_options(), "cache");
    require_range(shape.n_shapes, 0, 0, "cache->n_shapes");
    require(policy, "policy");
    const RouterTrainerOptions how = checked(read_struct(options, default_router_trainer_options(), "options"));
    require(result, "result");
    if (context->device != KVQ_DEVICE_CPU) {
      fail(KVQ_E_UNSUPPORTED, "context computes on %s: routers are trained on the CPU", context->backend->name());
    }
    if (policy->experts.empty()) fail(KVQ_E_ARGUMENT, "policy has no router with experts");
    const CacheTraining training = check_experts(*context, shape, *policy);
    return make_owned<kvq_router_trainer>(context->allocator, *context, shape, *policy, training, how);
  });
}

kvq_status kvq_router_trainer_add(kvq_router_trainer* trainer, int32_t layer, int32_t n, const void* q, const void* k,
                                  const void* v, kvq_dtype dtype, kvq_error* error) {
  return guarded(error, [&] {
    require(trainer, "trainer");
    require_range(layer, 0, trainer->n_layers() - 1, "layer");
    require_range(n, 1, INT32_MAX, "n");
    if (trainer->needs_attention()) require(q, "q");
    require(k, "k");
    if (trainer->needs_attention()) require(v, "v");
    require_range(dtype, KVQ_F32, KVQ_BF16, "dtype");
    trainer->add(layer, {q, k, v, dtype, n});
  });
}

kvq_status kvq_router_trainer_run(kvq_router_trainer* trainer, double loss, kvq_progress_hook progress, void* user,
                                  kvq_error* error) {
  return guarded(error, [&] {
    require(trainer, "trainer");
    if (!trainer->needs_attention() && !(loss > 0.0 && std::isfinite(loss))) {
      fail(KVQ_E_ARGUMENT, "loss is %g, must be positive and finite", loss);
    }
    trainer->run(loss, TrainingProgress(progress, user));
  });
}

kvq_status kvq_router_trainer_result(const kvq_router_trainer* trainer, kvq_router** result, kvq_error* error) {
  return created(result, error, [&] {
    require(trainer, "trainer");
    require(result, "result");
    kvq_context& context = *trainer->context;
    return make_owned<kvq_router>(context.allocator, context, trainer->result());
  });
}

void kvq_router_trainer_destroy(kvq_router_trainer* trainer) { destroy(trainer); }
