#include "training/commvq/codebook_trainer.h"

#include "core/text.h"
#include "training/commvq/key_trainer.h"
#include "training/commvq/value_trainer.h"

#include <algorithm>
#include <optional>

namespace kvq {
namespace {

[[noreturn]] void fail_cancelled() { fail(KVQ_E_CANCELLED, "the progress hook asked to stop"); }

/// Approximate share of a group's time for single stages; the rest is for all stages together.
constexpr double kStagesShare = 0.75;

/// Progress of one group as a share of its work.
struct GroupProgress {
  const TrainingProgress& progress;
  const KeyTrainingOptions& options;
  int32_t stages;
  double done = 0.0;

  static bool observe(const KeyTrainingProgress& step, void* user) {
    auto& self = *static_cast<GroupProgress*>(user);
    const bool together = step.stage >= self.stages;
    const int32_t steps = together ? self.options.rounds : self.options.soft_iterations + self.options.hard_iterations;
    const double share = std::min(static_cast<double>(step.iteration) / std::max(steps, 1), 1.0);
    const double now =
        together ? kStagesShare + (1.0 - kStagesShare) * share : kStagesShare * (step.stage + share) / self.stages;
    self.done = std::max(self.done, now);
    return self.progress.report(self.done);
  }
};

/// Divisors of keys: [heads with a norm][tokens].
Vector<float> norms_of(Allocator& allocator, const CodebookShape& shape, std::span<const float> keys, size_t tokens) {
  const size_t heads = shape.keys.norms == Scope::kHead ? static_cast<size_t>(shape.kv_heads) : 1;
  const size_t channels = keys.size() / tokens / heads;
  Vector<float> norms(heads * tokens, allocator);
  for (size_t head = 0; head < heads; ++head) {
    for (size_t t = 0; t < tokens; ++t) {
      norms[head * tokens + t] = key_norm(keys.subspan((t * heads + head) * channels, channels));
    }
  }
  return norms;
}

/// Σ ‖key / norm‖².
double energy_of(const KeyTrainingData& data) {
  double energy = 0.0;
  for (int32_t t = 0; t < data.n; ++t) {
    if (data.norms[t] == 0.0F) continue;
    const KeyPairs key = data.keys.from(t);
    double sum = 0.0;
    for (size_t j = 0; j < static_cast<size_t>(data.group); ++j) {
      const double re = key.real[j * key.pair_stride];
      const double im = key.imaginary[j * key.pair_stride];
      sum += re * re + im * im;
    }
    energy += sum / (double{data.norms[t]} * double{data.norms[t]});
  }
  return energy;
}

/// Train one side from numbers [tokens][kv_heads * head_dim], keys before RoPE, and fill its arrays of `layer`. Returns
/// its errors over tokens held out of training. The result depends only on the numbers, the shape, the rounds and the
/// seed. Throws KVQ_E_CANCELLED, and KVQ_E_ARGUMENT for unusable numbers.
KeyErrors train_layer_keys(Allocator& allocator, Training& backend, const CodebookShape& shape,
                           std::span<const float> keys, int32_t rounds, uint64_t seed, const TrainingProgress& progress,
                           LayerCodebook& layer) {
  const size_t tokens = keys.size() / static_cast<size_t>(shape.kv_heads * shape.head_dim);
  if (tokens > INT32_MAX) fail(KVQ_E_ARGUMENT, "%zu tokens are too many, train on at most %d", tokens, INT32_MAX);
  const Vector<float> norms = norms_of(allocator, shape, keys, tokens);
  const int32_t groups = shape.kv_heads * shape.groups();
  KeyErrors errors{};
  double energy = 0.0;
  for (int32_t i = 0; i < groups; ++i) {
    const int32_t head = i / shape.groups();
    const size_t norms_head = shape.keys.norms == Scope::kHead ? static_cast<size_t>(head) : 0;
    const KeyTrainingData data{.keys = key_pairs(shape, keys.data(), head, i % shape.groups()),
                               .norms = norms.data() + norms_head * tokens,
                               .n = static_cast<int32_t>(tokens),
                               .group = shape.keys.group};
    KeyTrainingOptions options;
    options.seed = seed + static_cast<uint64_t>(i);
    if (rounds > 0) options.rounds = rounds;
    const TrainingProgress part = progress.part(static_cast<double>(i) / groups, (i + 1.0) / groups);
    GroupProgress group_progress{part, options, shape.keys.stages};
    const KeyTrainingObserver observer{GroupProgress::observe, &group_progress};

    KeyTrainer trainer(allocator, backend, shape.keys.codes, data, options);
    Vector<float> z(allocator);
    if (!trainer.add_stages(shape.keys.stages, z, observer) || !trainer.refine(z, observer)) fail_cancelled();
    layer.key_codes.insert(layer.key_codes.end(), z.begin(), z.end());
    const double group_energy = energy_of(data);
    const Vector<double> group_errors = trainer.stage_errors(z);
    for (size_t stage = 0; stage < group_errors.size(); ++stage) errors[stage] += group_errors[stage] * group_energy;
    energy += group_energy;
  }
  if (energy > 0.0) {
    for (double& error : errors) error /= energy;
  }
  return errors;
}

double train_layer_values(Allocator& allocator, Parallel& parallel, Training& backend, const CodebookShape& shape,
                          std::span<const float> values, int32_t rounds, uint64_t seed,
                          const TrainingProgress& progress, LayerCodebook& layer) {
  ValueTrainingOptions options;
  options.seed = seed;
  if (rounds > 0) options.rounds = options.network_rounds = rounds;
  const auto call = [](void* user, const ValueTrainingProgress& done) {
    return static_cast<const TrainingProgress*>(user)->report(static_cast<double>(done.round) / done.rounds);
  };
  const ValueTrainingCallback callback{call, const_cast<TrainingProgress*>(&progress)};
  const std::optional<double> error =
      train_values(allocator, parallel, backend, shape, values, options, callback, layer);
  if (!error) fail_cancelled();
  return *error;
}

}  // namespace

CodebookTrainer::CodebookTrainer(Allocator& allocator, Parallel& parallel, Training& backend,
                                 const CodebookTrainerOptions& options)
    : LayeredTrainer(allocator, parallel, backend, options, options.shape.keys.stages > 0,
                     options.shape.values.bits > 0),
      rounds_(options.rounds) {
  scales_ = options.scales;
  result_.scales = scales_ != nullptr ? scales_->checksum() : 0;
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
  if (earlier.scales != result_.scales) {
    fail(KVQ_E_MISMATCH, "codebook->scales is %llx, the trainer's is %llx",
         static_cast<unsigned long long>(earlier.scales), static_cast<unsigned long long>(result_.scales));
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
