#include "training/router/router_trainer.h"
#include "api/boundary.h"
#include "api/handles.h"
#include "io/metadata_fields.h"

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

void require_within(double value, double low, double high, const char* argument) {
  if (value >= low && value <= high) return;
  fail(KVQ_E_ARGUMENT, "%s is %g, must be in [%g, %g]", argument, value, low, high);
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
  result.seed = options.seed;
  result.max_bytes = options.max_bytes;
  if (options.note != nullptr) result.note = options.note;
  io::check_note(result.note, kMaxRouterNote, "options->note");
  return result;
}

/// Whether caches could be made that store all pages as one expert does; what was trained for those that need it.
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

void kvq_router_trainer_options_init(kvq_router_trainer_options* options, size_t size) {
  init_struct(options, size, default_router_trainer_options());
}

kvq_status kvq_router_trainer_create(kvq_context* context, const kvq_cache_options* cache, const kvq_policy* policy,
                                     const kvq_router_trainer_options* options, kvq_router_trainer** result,
                                     kvq_error* error) {
  if (result != nullptr) *result = nullptr;
  return guarded(error, [&] {
    require(context, "context");
    const kvq_cache_options shape = read_struct(cache, default_cache_options(), "cache");
    require(policy, "policy");
    const RouterTrainerOptions how = checked(read_struct(options, default_router_trainer_options(), "options"));
    require(result, "result");
    if (context->device != KVQ_DEVICE_CPU) {
      fail(KVQ_E_UNSUPPORTED, "context computes on %s: routers are trained on the CPU", context->backend->name());
    }
    if (policy->experts.empty()) fail(KVQ_E_ARGUMENT, "policy has no router with experts");
    const CacheTraining training = check_experts(*context, shape, *policy);
    *result = make_owned<kvq_router_trainer>(context->allocator, *context, shape, *policy, training, how).release();
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
  if (result != nullptr) *result = nullptr;
  return guarded(error, [&] {
    require(trainer, "trainer");
    require(result, "result");
    kvq_context& context = *trainer->context;
    *result = make_owned<kvq_router>(context.allocator, context, trainer->result()).release();
  });
}

void kvq_router_trainer_destroy(kvq_router_trainer* trainer) { destroy(trainer); }
