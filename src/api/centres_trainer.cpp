#include "training/centres/centres_trainer.h"
#include "api/boundary.h"
#include "api/handles.h"
#include "io/metadata_fields.h"

using namespace kvq;
using namespace kvq::api;

struct kvq_centres_trainer : CentresTrainer {
  kvq_centres_trainer(kvq_context& owner, const CentresTrainerOptions& options)
      : CentresTrainer(owner.allocator, owner.parallel, owner.backend->training().require(), options), context(owner) {}

  Kept<kvq_context> context;
};

namespace {

constexpr int32_t kMaxCentresRounds = 1000;

kvq_centres_trainer_options default_centres_trainer_options() {
  kvq_centres_trainer_options options{};
  options.rope = KVQ_ROPE_HALF;
  options.key_centres = kMaxCentres;
  options.value_centres = kMaxCentres;
  options.seed = 1;
  return options;
}

CentresTrainerOptions checked(const kvq_centres_trainer_options& options) {
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
  result.seed = options.seed;
  result.model_id = options.model_id;
  result.max_bytes = options.max_bytes;
  if (options.note != nullptr) result.note = options.note;
  io::check_note(result.note, kMaxCentresNote, "options->note");
  return result;
}

void require_layer(const kvq_centres_trainer& trainer, int32_t layer) {
  require_range(layer, 0, trainer.result().shape.n_layers - 1, "layer");
}

}  // namespace

void kvq_centres_trainer_options_init(kvq_centres_trainer_options* options, size_t size) {
  init_struct(options, size, default_centres_trainer_options());
}

kvq_status kvq_centres_trainer_create(kvq_context* context, const kvq_centres_trainer_options* options,
                                      kvq_centres_trainer** result, kvq_error* error) {
  if (result != nullptr) *result = nullptr;
  return guarded(error, [&] {
    require(context, "context");
    const kvq_centres_trainer_options chosen = read_struct(options, default_centres_trainer_options(), "options");
    require(result, "result");
    *result = make_owned<kvq_centres_trainer>(context->allocator, *context, checked(chosen)).release();
  });
}

kvq_status kvq_centres_trainer_add(kvq_centres_trainer* trainer, int32_t layer, int32_t n, const void* k, const void* v,
                                   kvq_dtype dtype, kvq_error* error) {
  return guarded(error, [&] {
    require(trainer, "trainer");
    require_layer(*trainer, layer);
    require_range(n, 1, INT32_MAX, "n");
    if (trainer->result().shape.key_centres > 0) require(k, "k");
    if (trainer->result().shape.value_centres > 0) require(v, "v");
    require_range(dtype, KVQ_F32, KVQ_BF16, "dtype");
    trainer->add(layer, n, k, v, dtype);
  });
}

kvq_status kvq_centres_trainer_run(kvq_centres_trainer* trainer, int32_t layer, kvq_progress_hook progress, void* user,
                                   kvq_error* error) {
  return guarded(error, [&] {
    require(trainer, "trainer");
    require_layer(*trainer, layer);
    trainer->run(layer, TrainingProgress(progress, user));
  });
}

kvq_status kvq_centres_trainer_result(const kvq_centres_trainer* trainer, kvq_centres** result, kvq_error* error) {
  if (result != nullptr) *result = nullptr;
  return guarded(error, [&] {
    require(trainer, "trainer");
    require(result, "result");
    Allocator& allocator = trainer->context->allocator;
    auto centres = std::allocate_shared<const ModelCentres>(StlAllocator<ModelCentres>(allocator), trainer->result());
    *result = make_owned<kvq_centres>(allocator, *trainer->context, std::move(centres)).release();
  });
}

void kvq_centres_trainer_destroy(kvq_centres_trainer* trainer) { destroy(trainer); }
