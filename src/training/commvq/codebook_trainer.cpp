#include "training/commvq/codebook_trainer.h"

#include "core/error.h"
#include "core/splitmix.h"
#include "core/tensor.h"
#include "core/text.h"

#include <algorithm>
#include <array>

namespace kvq {

CodebookTrainer::CodebookTrainer(Allocator& allocator, Parallel& parallel, const CodebookTrainerOptions& options)
    : allocator_(allocator),
      work_(allocator, options.max_bytes, "trainer"),
      parallel_(parallel),
      rounds_(options.rounds),
      result_(allocator, options.shape),
      samples_(static_cast<size_t>(options.shape.n_layers), Samples(work_), StlAllocator<Samples>(work_)) {
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
    samples_[i] = Samples(work_);
  }
}

Vector<uint16_t> CodebookTrainer::copy(const void* numbers, kvq_dtype dtype, int32_t n, const char* argument) {
  const auto width = static_cast<size_t>(result_.shape.kv_heads) * static_cast<size_t>(result_.shape.head_dim);
  Vector<uint16_t> halves(static_cast<size_t>(n) * width, StlAllocator<uint16_t>(work_));
  std::array<float, 256> stretch;
  for (size_t begin = 0; begin < halves.size(); begin += stretch.size()) {
    const size_t count = std::min(stretch.size(), halves.size() - begin);
    read_floats(numbers, dtype, begin, static_cast<int32_t>(count), stretch.data());
    for (size_t i = 0; i < count; ++i) {
      halves[begin + i] = to_float16(stretch[i]);
      if (is_finite_float16(halves[begin + i])) continue;
      fail(KVQ_E_ARGUMENT, "%s[%zu] is %g, must be finite and at most 65504", argument, begin + i,
           static_cast<double>(stretch[i]));
    }
  }
  return halves;
}

void CodebookTrainer::add(int32_t layer, int32_t n, const void* keys, const void* values, kvq_dtype dtype) {
  require_unfinished(layer);
  const CodebookShape& shape = result_.shape;
  const StlAllocator<uint16_t> memory(work_);
  Block block{Vector<uint16_t>(memory), Vector<uint16_t>(memory), n};
  if (shape.keys.stages > 0) block.keys = copy(keys, dtype, n, "k");
  if (shape.values.bits > 0) block.values = copy(values, dtype, n, "v");
  Samples& samples = samples_[static_cast<size_t>(layer)];
  samples.blocks.push_back(std::move(block));
  samples.tokens += n;
}

Vector<float> CodebookTrainer::gather(const Samples& samples, Vector<uint16_t> Block::*side) {
  size_t size = 0;
  for (const Block& block : samples.blocks) size += (block.*side).size();
  Vector<float> numbers(size, StlAllocator<float>(work_));
  float* out = numbers.data();
  for (const Block& block : samples.blocks) {
    for (const uint16_t half : block.*side) *out++ = from_float16(half);
  }
  return numbers;
}

void CodebookTrainer::run(int32_t layer, const TrainingProgress& progress) {
  require_unfinished(layer);
  const CodebookShape& shape = result_.shape;
  Samples& samples = samples_[static_cast<size_t>(layer)];
  if (samples.tokens == 0) fail(KVQ_E_STATE, "layer %d has no tokens to train on", layer);
  const auto numbers = std::allocate_shared<LayerCodebook>(StlAllocator<LayerCodebook>(allocator_), allocator_);
  ModelCodebook::Layer trained{.numbers = numbers, .tokens = samples.tokens};
  const uint64_t seed = splitmix64(result_.seed, static_cast<uint64_t>(layer));  // layers may be trained in any order
  const bool both = shape.keys.stages > 0 && shape.values.bits > 0;
  if (shape.keys.stages > 0) {
    const Vector<float> keys = gather(samples, &Block::keys);
    trained.key_errors = train_layer_keys(work_, parallel_, shape, keys, rounds_.keys, seed,
                                          progress.part(0.0, both ? 0.5 : 1.0), *numbers);
  }
  if (shape.values.bits > 0) {
    const Vector<float> values = gather(samples, &Block::values);
    trained.value_error = train_layer_values(work_, parallel_, shape, values, rounds_.values, seed,
                                             progress.part(both ? 0.5 : 0.0, 1.0), *numbers);
  }
  check_layer_codebook(shape, *numbers, layer, KVQ_E_INTERNAL);
  round_as_in_files(shape, *numbers);
  result_.layers[static_cast<size_t>(layer)] = std::move(trained);
  samples = Samples(work_);
}

void CodebookTrainer::require_unfinished(int32_t layer) const {
  if (result_.layers[static_cast<size_t>(layer)].numbers == nullptr) return;
  fail(KVQ_E_STATE, "layer %d is finished", layer);
}

}  // namespace kvq
