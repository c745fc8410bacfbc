#include "api/trained.h"
#include "io/trained_files.h"
#include "training/commvq/codebook_trainer.h"

#include <algorithm>

using namespace kvq;
using namespace kvq::api;

struct kvq_codebook_trainer : TrainerHandle<CodebookTrainer> {
  using TrainerHandle::TrainerHandle;
};

namespace {

kvq_codebook_info describe_codebook(const kvq_codebook& handle) {
  const ModelCodebook& codebook = *handle.shared;
  const CodebookShape& shape = codebook.shape;
  auto info = describe_trained<kvq_codebook_info>(codebook, shape.pairing, codebook.bytes());
  info.key_stages = shape.keys.stages;
  info.key_codes = shape.keys.codes;
  info.key_group = shape.keys.group;
  info.key_norms = static_cast<kvq_scope>(shape.keys.norms);
  info.value_bits = shape.values.bits;
  info.value_scope = static_cast<kvq_scope>(shape.values.scope);
  info.key_true_bits = key_bits(shape);
  info.scales = codebook.scales;
  info.value_true_bits = value_bits(shape);
  describe_layers(codebook, info, {&info.key_error, &info.value_error}, [&](const ModelCodebook::Layer& layer) {
    info.key_error += codebook.key_error(layer);
    info.value_error += layer.value_error;
  });
  return info;
}

kvq_codebook_layer_info describe_layer(const ModelCodebook& codebook, int32_t index) {
  const ModelCodebook::Layer& layer = codebook.layers[static_cast<size_t>(index)];
  kvq_codebook_layer_info info{};
  info.present = layer.numbers != nullptr ? 1 : 0;
  info.tokens = layer.tokens;
  info.key_error = codebook.key_error(layer);
  info.value_error = layer.value_error;
  std::copy(layer.key_errors.begin(), layer.key_errors.end(), info.key_stage_errors);
  return info;
}

constexpr int32_t kMaxCodebookRounds = 1000;

kvq_codebook_trainer_options default_codebook_trainer_options() {
  kvq_codebook_trainer_options options{};
  options.rope = KVQ_ROPE_HALF;
  options.key_stages = 11;
  options.key_codes = 64;
  options.key_norms = KVQ_SCOPE_HEAD;
  options.value_bits = 1;
  options.value_scope = KVQ_SCOPE_LAYER;
  options.seed = 1;
  return options;
}

CodebookTrainerOptions checked_codebook_options(const kvq_context& context,
                                                const kvq_codebook_trainer_options& options) {
  CodebookTrainerOptions result;
  CodebookShape& shape = result.shape;
  shape.n_layers = options.n_layers;
  shape.kv_heads = options.kv_heads;
  shape.head_dim = options.head_dim;
  shape.pairing = options.rope;
  shape.keys.stages = options.key_stages;
  shape.keys.codes = options.key_codes;
  shape.keys.group = options.key_group != 0 ? options.key_group : options.head_dim / 2;
  shape.keys.norms = static_cast<Scope>(options.key_norms);
  shape.values.bits = options.value_bits;
  shape.values.scope = static_cast<Scope>(options.value_scope);
  check_codebook_shape(shape, KVQ_E_ARGUMENT, "options->");
  require_range(options.key_rounds, 0, kMaxCodebookRounds, "options->key_rounds");
  require_range(options.value_rounds, 0, kMaxCodebookRounds, "options->value_rounds");
  require_range(options.value_method, KVQ_VALUES_LEAST_SQUARES, KVQ_VALUES_NETWORK, "options->value_method");
  if (options.value_method == KVQ_VALUES_NETWORK && shape.values.bits > 0) {
    shape.values.proposal = ValueProposal::kNetwork;
    shape.values.hidden = shape.width();
  }
  result.rounds = {options.key_rounds, options.value_rounds};
  result.model_id = options.model_id;
  if (options.scales != nullptr) {
    require_context(context, *options.scales, "options->scales");
    const ModelCentres& scales = *options.scales->shared;
    if (!scales.shape.has_scales()) fail(KVQ_E_ARGUMENT, "options->scales has no scales");
    check_scales(scales,
                 {.n_layers = options.n_layers,
                  .kv_heads = options.kv_heads,
                  .head_dim = options.head_dim,
                  .rope = options.rope,
                  .rotary_dim = 0,
                  .model_id = options.model_id,
                  .scales = 0},
                 "scales");
    result.scales = options.scales->shared;
  }
  take_common(options, kMaxCodebookNote, result);
  return result;
}

}  // namespace

kvq_status kvq_codebook_load(kvq_context* context, const void* buffer, size_t size, kvq_codebook** result,
                             kvq_error* error) {
  return load_trained(context, buffer, size, result, error, io::read_codebook);
}

kvq_status kvq_codebook_save(const kvq_codebook* codebook, void* buffer, size_t capacity, size_t* size,
                             kvq_error* error) {
  return save_trained(codebook, "codebook", buffer, capacity, size, error, io::codebook_file);
}

kvq_status kvq_codebook_describe(const kvq_codebook* codebook, kvq_codebook_info* info, kvq_error* error) {
  return described(codebook, "codebook", info, error, describe_codebook);
}

kvq_status kvq_codebook_describe_layer(const kvq_codebook* codebook, int32_t layer, kvq_codebook_layer_info* info,
                                       kvq_error* error) {
  return guarded(error, [&] {
    require(codebook, "codebook");
    require_range(layer, 0, codebook->shared->shape.n_layers - 1, "layer");
    write_struct(info, describe_layer(*codebook->shared, layer), "info");
  });
}

void kvq_codebook_destroy(kvq_codebook* codebook) { destroy(codebook); }

void kvq_codebook_trainer_options_init(kvq_codebook_trainer_options* options, size_t size) {
  init_struct(options, size, default_codebook_trainer_options());
}

kvq_status kvq_codebook_trainer_create(kvq_context* context, const kvq_codebook_trainer_options* options,
                                       kvq_codebook_trainer** result, kvq_error* error) {
  return create_trainer(context, options, default_codebook_trainer_options(), result, error, checked_codebook_options);
}

kvq_status kvq_codebook_trainer_resume(kvq_codebook_trainer* trainer, const kvq_codebook* codebook, kvq_error* error) {
  return guarded(error, [&] {
    require(trainer, "trainer");
    require(codebook, "codebook");
    require_context(*trainer->context, *codebook, "codebook");
    trainer->resume(*codebook->shared);
  });
}

kvq_status kvq_codebook_trainer_add(kvq_codebook_trainer* trainer, int32_t layer, int32_t n, const void* k,
                                    const void* v, kvq_dtype dtype, kvq_error* error) {
  return add_to_trainer(trainer, layer, n, k, v, dtype, error);
}

kvq_status kvq_codebook_trainer_run(kvq_codebook_trainer* trainer, int32_t layer, kvq_progress_hook progress,
                                    void* user, kvq_error* error) {
  return run_trainer(trainer, layer, progress, user, error);
}

kvq_status kvq_codebook_trainer_result(const kvq_codebook_trainer* trainer, kvq_codebook** result, kvq_error* error) {
  return trainer_result(trainer, result, error);
}

void kvq_codebook_trainer_destroy(kvq_codebook_trainer* trainer) { destroy(trainer); }
