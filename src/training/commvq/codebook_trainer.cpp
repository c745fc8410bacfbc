#include "training/commvq/codebook_trainer.h"

#include "core/text.h"

namespace kvq {

CodebookTrainer::CodebookTrainer(Allocator& allocator, Parallel& parallel, Training& backend,
                                 const CodebookTrainerOptions& options)
    : LayeredTrainer(allocator, parallel, backend, options, options.shape.keys.stages > 0,
                     options.shape.values.bits > 0),
      rounds_(options.rounds) {}

void CodebookTrainer::resume(const ModelCodebook& earlier) {
  if (!(earlier.shape == result_.shape)) fail(KVQ_E_MISMATCH, "codebook has another shape than the trainer");
  if (earlier.model_id != result_.model_id) {
    fail(KVQ_E_MISMATCH, "codebook->model_id is %llx, the trainer's is %llx",
         static_cast<unsigned long long>(earlier.model_id), static_cast<unsigned long long>(result_.model_id));
  }
  if (earlier.seed != result_.seed) {
    fail(KVQ_E_MISMATCH, "codebook->seed is %llu, the trainer's is %llu", static_cast<unsigned long long>(earlier.seed),
         static_cast<unsigned long long>(result_.seed));
  }
  if (earlier.note != result_.note) {
    fail(KVQ_E_MISMATCH, "codebook->note is \"%s\", the trainer's is \"%s\"", Quoted(earlier.note).c_str(),
         Quoted(result_.note).c_str());
  }
  for (size_t i = 0; i < result_.layers.size(); ++i) {
    if (result_.layers[i].numbers != nullptr || earlier.layers[i].numbers == nullptr) continue;
    finish(static_cast<int32_t>(i), ModelCodebook::Layer(earlier.layers[i]));
  }
}

void CodebookTrainer::run(int32_t layer, const TrainingProgress& progress) {
  const KeptTokens& tokens = tokens_of(layer);
  const CodebookShape& shape = result_.shape;
  const auto numbers = std::allocate_shared<LayerCodebook>(StlAllocator<LayerCodebook>(allocator_), allocator_);
  ModelCodebook::Layer trained{.numbers = numbers, .tokens = tokens.tokens()};
  if (trains(Side::kKeys)) {
    const Vector<float> keys = tokens.gather(Side::kKeys);
    trained.key_errors = train_layer_keys(work_, backend_, shape, keys, rounds_.keys, seed_of(layer),
                                          part_of(Side::kKeys, progress), *numbers);
  }
  if (trains(Side::kValues)) {
    const Vector<float> values = tokens.gather(Side::kValues);
    trained.value_error = train_layer_values(work_, parallel_, backend_, shape, values, rounds_.values, seed_of(layer),
                                             part_of(Side::kValues, progress), *numbers);
  }
  check_layer_codebook(shape, *numbers, layer, KVQ_E_INTERNAL);
  round_as_in_files(shape, *numbers);
  finish(layer, std::move(trained));
}

}  // namespace kvq
