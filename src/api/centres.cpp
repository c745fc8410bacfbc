#include "api/rope_options.h"
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
  info.key_scales = centres.shape.key_scales;
  info.value_scales = centres.shape.value_scales;
  info.checksum = centres.complete() ? centres.checksum() : 0;
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
  if (layer.numbers == nullptr) return info;
  if (centres.shape.key_scales != 0) {
    info.key_offset = layer.key_spread.largest_offset;
    info.key_imbalance = layer.key_spread.imbalance;
    info.key_noise = layer.key_spread.noise;
    info.scaled_key_noise = layer.key_spread.scaled_noise;
  }
  if (centres.shape.value_scales != 0) {
    info.value_imbalance = layer.value_spread.imbalance;
    info.value_noise = layer.value_spread.noise;
    info.scaled_value_noise = layer.value_spread.scaled_noise;
  }
  return info;
}

kvq_attention_weights default_weights() {
  kvq_attention_weights weights{};
  weights.dtype = KVQ_F32;
  return weights;
}

constexpr int32_t kMostInputs = 1 << 20;

/// Copy an array of scales for the caller, if wanted.
void copy_scales(const Vector<float>& from, const char* argument, int32_t layer, float* to) {
  if (to == nullptr) return;
  if (from.empty()) fail(KVQ_E_STATE, "%s is given, but layer %d has none", argument, layer);
  std::copy(from.begin(), from.end(), to);
}

constexpr int32_t kMaxCentresRounds = 1000;

kvq_centres_trainer_options default_centres_trainer_options() {
  kvq_centres_trainer_options options{};
  options.rope = KVQ_ROPE_HALF;
  options.key_centres = kMaxCentres;
  options.value_centres = kMaxCentres;
  options.seed = 1;
  options.rope_base = 10000.0F;
  return options;
}

CentresTrainerOptions checked_centres_options(const kvq_context& /*context*/,
                                              const kvq_centres_trainer_options& options) {
  CentresTrainerOptions result;
  result.shape = {.n_layers = options.n_layers,
                  .kv_heads = options.kv_heads,
                  .head_dim = options.head_dim,
                  .rope = options.rope,
                  .key_centres = options.key_centres,
                  .value_centres = options.value_centres,
                  .key_scales = options.key_scales,
                  .value_scales = options.value_scales};
  check_centres_shape(result.shape, KVQ_E_ARGUMENT, "options->");
  require_range(options.rounds, 0, kMaxCentresRounds, "options->rounds");
  result.rounds = options.rounds;
  require_range(options.fold, 0, 1, "options->fold");
  require_range(options.powers_of_two, 0, 1, "options->powers_of_two");
  if (options.key_scales != 0) {
    check_rope(options);
    result.rotary_dim = options.rotary_dim;
    result.rope_base = options.rope_base;
    result.inv_freq = options.inv_freq;
  }
  result.fold = options.fold != 0;
  result.powers_of_two = options.powers_of_two != 0;
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

kvq_status kvq_centres_read_scales(const kvq_centres* centres, int32_t layer, float* key_scales, float* value_scales,
                                   float* value_offsets, kvq_error* error) {
  return guarded(error, [&] {
    require(centres, "centres");
    require_range(layer, 0, centres->shared->shape.n_layers - 1, "layer");
    const auto& numbers = centres->shared->layers[static_cast<size_t>(layer)].numbers;
    if (numbers == nullptr) fail(KVQ_E_STATE, "layer %d is missing: finish its training", layer);
    copy_scales(numbers->key_scales, "key_scales", layer, key_scales);
    copy_scales(numbers->value_scales, "value_scales", layer, value_scales);
    copy_scales(numbers->value_offsets, "value_offsets", layer, value_offsets);
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

kvq_status kvq_centres_trainer_add_queries(kvq_centres_trainer* trainer, int32_t layer, int32_t n, int32_t q_heads,
                                           const void* q, kvq_dtype dtype, kvq_error* error) {
  return guarded(error, [&] {
    require_trainer_layer(trainer, layer);
    require_range(n, 1, INT32_MAX, "n");
    require_query_heads(q_heads, trainer->result().shape.kv_heads, "q_heads");
    require(q, "q");
    require_range(dtype, KVQ_F32, KVQ_BF16, "dtype");
    trainer->add_queries(layer, n, q_heads, q, dtype);
  });
}

void kvq_attention_weights_init(kvq_attention_weights* weights, size_t size) {
  init_struct(weights, size, default_weights());
}

kvq_status kvq_centres_trainer_add_weights(kvq_centres_trainer* trainer, int32_t layer,
                                           const kvq_attention_weights* weights, kvq_error* error) {
  return guarded(error, [&] {
    require_trainer_layer(trainer, layer);
    const kvq_attention_weights given = read_struct(weights, default_weights(), "weights");
    require_query_heads(given.q_heads, trainer->result().shape.kv_heads, "weights->q_heads");
    require_range(given.hidden_size, 1, kMostInputs, "weights->hidden_size");
    require_range(given.dtype, KVQ_F32, KVQ_BF16, "weights->dtype");
    trainer->add_weights(layer, given);
  });
}

kvq_status kvq_centres_trainer_run(kvq_centres_trainer* trainer, int32_t layer, kvq_progress_hook progress, void* user,
                                   kvq_error* error) {
  return run_trainer(trainer, layer, progress, user, error);
}

kvq_status kvq_centres_trainer_result(const kvq_centres_trainer* trainer, kvq_centres** result, kvq_error* error) {
  return trainer_result(trainer, result, error);
}

void kvq_centres_trainer_destroy(kvq_centres_trainer* trainer) { destroy(trainer); }
