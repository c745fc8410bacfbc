#include "training/commvq/codebook_trainer.h"
#include "api/boundary.h"
#include "api/handles.h"
#include "io/metadata_fields.h"

using namespace kvq;
using namespace kvq::api;

struct kvq_codebook_trainer : CodebookTrainer {
  kvq_codebook_trainer(kvq_context& owner, const CodebookTrainerOptions& options)
      : CodebookTrainer(owner.allocator, owner.parallel, owner.backend->training().require(), options),
        context(owner) {}

  Kept<kvq_context> context;
};

namespace {

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

CodebookTrainerOptions checked(const kvq_codebook_trainer_options& options) {
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
  result.seed = options.seed;
  result.model_id = options.model_id;
  result.max_bytes = options.max_bytes;
  if (options.note != nullptr) result.note = options.note;
  io::check_note(result.note, kMaxCodebookNote, "options->note");
  return result;
}

void require_layer(const kvq_codebook_trainer& trainer, int32_t layer) {
  require_range(layer, 0, trainer.result().shape.n_layers - 1, "layer");
}

}  // namespace

void kvq_codebook_trainer_options_init(kvq_codebook_trainer_options* options, size_t size) {
  init_struct(options, size, default_codebook_trainer_options());
}

kvq_status kvq_codebook_trainer_create(kvq_context* context, const kvq_codebook_trainer_options* options,
                                       kvq_codebook_trainer** result, kvq_error* error) {
  if (result != nullptr) *result = nullptr;
  return guarded(error, [&] {
    require(context, "context");
    const kvq_codebook_trainer_options chosen = read_struct(options, default_codebook_trainer_options(), "options");
    require(result, "result");
    *result = make_owned<kvq_codebook_trainer>(context->allocator, *context, checked(chosen)).release();
  });
}

kvq_status kvq_codebook_trainer_resume(kvq_codebook_trainer* trainer, const kvq_codebook* codebook, kvq_error* error) {
  return guarded(error, [&] {
    require(trainer, "trainer");
    require(codebook, "codebook");
    if (&*codebook->context != &*trainer->context) fail(KVQ_E_ARGUMENT, "codebook belongs to another context");
    trainer->resume(*codebook->shared);
  });
}

kvq_status kvq_codebook_trainer_add(kvq_codebook_trainer* trainer, int32_t layer, int32_t n, const void* k,
                                    const void* v, kvq_dtype dtype, kvq_error* error) {
  return guarded(error, [&] {
    require(trainer, "trainer");
    require_layer(*trainer, layer);
    require_range(n, 1, INT32_MAX, "n");
    if (trainer->result().shape.keys.stages > 0) require(k, "k");
    if (trainer->result().shape.values.bits > 0) require(v, "v");
    require_range(dtype, KVQ_F32, KVQ_BF16, "dtype");
    trainer->add(layer, n, k, v, dtype);
  });
}

kvq_status kvq_codebook_trainer_run(kvq_codebook_trainer* trainer, int32_t layer, kvq_progress_hook progress,
                                    void* user, kvq_error* error) {
  return guarded(error, [&] {
    require(trainer, "trainer");
    require_layer(*trainer, layer);
    trainer->run(layer, TrainingProgress(progress, user));
  });
}

kvq_status kvq_codebook_trainer_result(const kvq_codebook_trainer* trainer, kvq_codebook** result, kvq_error* error) {
  if (result != nullptr) *result = nullptr;
  return guarded(error, [&] {
    require(trainer, "trainer");
    require(result, "result");
    Allocator& allocator = trainer->context->allocator;
    auto codebook =
        std::allocate_shared<const ModelCodebook>(StlAllocator<ModelCodebook>(allocator), trainer->result());
    *result = make_owned<kvq_codebook>(allocator, *trainer->context, std::move(codebook)).release();
  });
}

void kvq_codebook_trainer_destroy(kvq_codebook_trainer* trainer) { destroy(trainer); }
