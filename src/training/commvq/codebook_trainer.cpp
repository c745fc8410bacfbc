#include "training/commvq/codebook_trainer.h"

#include "core/error.h"
#include "core/splitmix.h"
#include "core/text.h"

namespace kvq {
namespace {

size_t width(const CodebookShape& shape) {
  return static_cast<size_t>(shape.kv_heads) * static_cast<size_t>(shape.head_dim);
}

}  // namespace

CodebookTrainer::CodebookTrainer(Allocator& allocator, Parallel& parallel, Training& backend,
                                 const CodebookTrainerOptions& options)
    : allocator_(allocator),
      work_(allocator, options.max_bytes, "trainer"),
      parallel_(parallel),
      backend_(backend),
      rounds_(options.rounds),
      result_(allocator, options.shape),
      tokens_(static_cast<size_t>(options.shape.n_layers), KeptTokens(work_, width(options.shape)),
              StlAllocator<KeptTokens>(work_)) {
  result_.seed = options.seed;
  result_.model_id = options.model_id;
  result_.note = options.note;
}

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
    result_.layers[i] = earlier.layers[i];
    tokens_[i] = KeptTokens(work_, width(result_.shape));
  }
}

void CodebookTrainer::add(int32_t layer, int32_t n, const void* keys, const void* values, kvq_dtype dtype) {
  require_unfinished(layer);
  const CodebookShape& shape = result_.shape;
  tokens_[static_cast<size_t>(layer)].add(n, shape.keys.stages > 0 ? keys : nullptr,
                                          shape.values.bits > 0 ? values : nullptr, dtype);
}

void CodebookTrainer::run(int32_t layer, const TrainingProgress& progress) {
  require_unfinished(layer);
  const CodebookShape& shape = result_.shape;
  KeptTokens& tokens = tokens_[static_cast<size_t>(layer)];
  if (tokens.tokens() == 0) fail(KVQ_E_STATE, "layer %d has no tokens to train on", layer);
  const auto numbers = std::allocate_shared<LayerCodebook>(StlAllocator<LayerCodebook>(allocator_), allocator_);
  ModelCodebook::Layer trained{.numbers = numbers, .tokens = tokens.tokens()};
  const uint64_t seed = splitmix64(result_.seed, static_cast<uint64_t>(layer));  // layers may be trained in any order
  const bool both = shape.keys.stages > 0 && shape.values.bits > 0;
  if (shape.keys.stages > 0) {
    const Vector<float> keys = tokens.gather(Side::kKeys);
    trained.key_errors = train_layer_keys(work_, backend_, shape, keys, rounds_.keys, seed,
                                          progress.part(0.0, both ? 0.5 : 1.0), *numbers);
  }
  if (shape.values.bits > 0) {
    const Vector<float> values = tokens.gather(Side::kValues);
    trained.value_error = train_layer_values(work_, parallel_, backend_, shape, values, rounds_.values, seed,
                                             progress.part(both ? 0.5 : 0.0, 1.0), *numbers);
  }
  check_layer_codebook(shape, *numbers, layer, KVQ_E_INTERNAL);
  round_as_in_files(shape, *numbers);
  result_.layers[static_cast<size_t>(layer)] = std::move(trained);
  tokens = KeptTokens(work_, width(shape));
}

void CodebookTrainer::require_unfinished(int32_t layer) const {
  if (result_.layers[static_cast<size_t>(layer)].numbers == nullptr) return;
  fail(KVQ_E_STATE, "layer %d is finished", layer);
}

}  // namespace kvq
