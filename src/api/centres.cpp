#include "api/trained.h"
#include "io/trained_files.h"
#include "training/centres/centres_trainer.h"

using namespace kvq;
using namespace kvq::api;

struct kvq_centres_trainer : TrainerHandle<CentresTrainer> {
  using TrainerHandle::TrainerHandle;
};

namespace {

kvq_centres_info describe_centres(const kvq_centres& handle) {
  const ModelCentres& centres = *handle.shared;
  auto info = describe_trained<kvq_centres_info>(centres, centres.shape.rope, centres.bytes());
  info.key_centres = centres.shape.key_centres;
  info.value_centres = centres.shape.value_centres;
  describe_layers(centres, info, {&info.key_residual, &info.value_residual}, [&](const ModelCentres::Layer& layer) {
    info.key_residual += layer.key_residual;
    info.value_residual += layer.value_residual;
  });
  return info;
}

kvq_centres_layer_info describe_layer(const ModelCentres& centres, int32_t index) {
  const ModelCentres::Layer& layer = centres.layers[static_cast<size_t>(index)];
  kvq_centres_layer_info info{};
  info.present = layer.numbers != nullptr ? 1 : 0;
  info.tokens = layer.tokens;
  info.key_residual = layer.key_residual;
  info.value_residual = layer.value_residual;
  return info;
}

constexpr int32_t kMaxCentresRounds = 1000;

kvq_centres_trainer_options default_centres_trainer_options() {
  kvq_centres_trainer_options options{};
  options.rope = KVQ_ROPE_HALF;
  options.key_centres = kMaxCentres;
  options.value_centres = kMaxCentres;
  options.seed = 1;
  return options;
}

CentresTrainerOptions checked_centres_options(const kvq_centres_trainer_options& options) {
  CentresTrainerOptions result;
  result.shape = {.n_layers = options.n_layers,
                  .kv_heads = options.kv_heads,
                  .head_dim = options.head_dim,
                  .rope = options.rope,
                  .key_centres = options.key_centres,
                  .value_centres = options.value_centres};
  check_centres_shape(result.shape, KVQ_E_ARGUMENT, "options->");
  require_range(options.rounds, 0, kMaxCentresRounds, "options->rounds");
  result.rounds = options.rounds;
  result.model_id = options.model_id;
  take_common(options, kMaxCentresNote, result);
  return result;
}

}  // namespace

kvq_status kvq_centres_load(kvq_context* context, const void* buffer, size_t size, kvq_centres** result,
                            kvq_error* error) {
  return load_trained(context, buffer, size, result, error, io::read_centres);
}

kvq_status kvq_centres_save(const kvq_centres* centres, void* buffer, size_t capacity, size_t* size, kvq_error* error) {
  return save_trained(centres, "centres", buffer, capacity, size, error, io::centres_file);
}

kvq_status kvq_centres_describe(const kvq_centres* centres, kvq_centres_info* info, kvq_error* error) {
  return described(centres, "centres", info, error, describe_centres);
}

kvq_status kvq_centres_describe_layer(const kvq_centres* centres, int32_t layer, kvq_centres_layer_info* info,
                                      kvq_error* error) {
  return guarded(error, [&] {
    require(centres, "centres");
    require_range(layer, 0, centres->shared->shape.n_layers - 1, "layer");
    write_struct(info, describe_layer(*centres->shared, layer), "info");
  });
}

void kvq_centres_destroy(kvq_centres* centres) { destroy(centres); }

void kvq_centres_trainer_options_init(kvq_centres_trainer_options* options, size_t size) {
  init_struct(options, size, default_centres_trainer_options());
}

kvq_status kvq_centres_trainer_create(kvq_context* context, const kvq_centres_trainer_options* options,
                                      kvq_centres_trainer** result, kvq_error* error) {
  return create_trainer(context, options, default_centres_trainer_options(), result, error, checked_centres_options);
}

kvq_status kvq_centres_trainer_add(kvq_centres_trainer* trainer, int32_t layer, int32_t n, const void* k, const void* v,
                                   kvq_dtype dtype, kvq_error* error) {
  return add_to_trainer(trainer, layer, n, k, v, dtype, error);
}

kvq_status kvq_centres_trainer_run(kvq_centres_trainer* trainer, int32_t layer, kvq_progress_hook progress, void* user,
                                   kvq_error* error) {
  return run_trainer(trainer, layer, progress, user, error);
}

kvq_status kvq_centres_trainer_result(const kvq_centres_trainer* trainer, kvq_centres** result, kvq_error* error) {
  return trainer_result(trainer, result, error);
}

void kvq_centres_trainer_destroy(kvq_centres_trainer* trainer) { destroy(trainer); }
