#include "train/codebook_training.h"

#include <algorithm>
#include "bench/stopwatch.h"
#include "llama/error.h"
#include "llama/mapped_file.h"
#include "terminal/interrupt.h"
#include "terminal/output_file.h"
#include "terminal/progress.h"
#include "train/calibration.h"
#include "train/training_bar.h"

namespace cli {
namespace {

kvq::CodebookTrainer make_trainer(Engine& engine, const CodebookTraining& training) {
  const llama::ModelConfig& config = engine.model.config();
  kvq_codebook_trainer_options options = training.options;
  options.n_layers = config.n_layers;
  options.kv_heads = config.kv_heads;
  options.head_dim = config.head_dim;
  options.rope = KVQ_ROPE_HALF;
  options.model_id = engine.model.weights().fingerprint;
  options.note = training.note.c_str();
  return kvq::CodebookTrainer(engine.context, options);
}

void resume(kvq_context* context, kvq::CodebookTrainer& trainer, const std::filesystem::path& partial) {
  std::error_code ignored;
  if (!std::filesystem::exists(partial, ignored)) return;
  try {
    const llama::MappedFile file(partial);
    const kvq::Codebook codebook = kvq::Codebook::load(context, file.bytes());
    trainer.resume(codebook);
  } catch (const kvq::Error& error) {
    throw llama::Error(partial.string() + " holds other work: " + error.what() + "; remove it or choose another --out");
  }
}

std::vector<bool> finished_layers(const kvq::CodebookTrainer& trainer, int32_t n_layers) {
  const kvq::Codebook codebook = trainer.result();
  std::vector<bool> finished;
  for (int32_t i = 0; i < n_layers; ++i) {
    finished.push_back(codebook.describe_layer(i).present != 0);
  }
  return finished;
}

void collect(Engine& engine, kvq::CodebookTrainer& trainer, const std::vector<bool>& finished,
             const std::vector<std::span<const int32_t>>& windows) {
  llama::Session session(engine.model, engine.context, nullptr);
  session.observe([&](int32_t layer, const llama::ObservedAttention& seen) {
    if (finished[static_cast<size_t>(layer)]) return;
    const HostTokens tokens(engine.model, seen);
    trainer.add(layer, seen.n, tokens.k(), tokens.v(), KVQ_F32);
  });
  run_windows(session, windows, "keys and values");
}

void train_layer(kvq::CodebookTrainer& trainer, int32_t layer, Progress& bar) {
  TrainingBar progress(bar, kLayerSteps);
  trainer.run(layer, TrainingBar::hook, &progress);
  progress.finish();
}

TrainedCodebook train_layers(Engine& engine, const CodebookTraining& training) {
  const int32_t n_layers = engine.model.config().n_layers;
  kvq::CodebookTrainer trainer = make_trainer(engine, training);
  resume(engine.context, trainer, training.partial);
  const std::vector<bool> finished = finished_layers(trainer, n_layers);
  TrainedCodebook result{.codebook = nullptr, .layer_seconds = std::vector<double>(finished.size(), -1.0)};
  if (std::ranges::find(finished, false) != finished.end()) collect(engine, trainer, finished, training.windows);

  Progress bar("training", n_layers * kLayerSteps);
  for (int32_t i = 0; i < n_layers; ++i) {
    const auto layer = static_cast<size_t>(i);
    if (finished[layer]) {
      bar.advance(kLayerSteps);
      continue;
    }
    const Stopwatch watch;
    train_layer(trainer, i, bar);
    result.layer_seconds[layer] = watch.seconds();
    write_file(training.partial, trainer.result().save());
  }
  result.codebook = trainer.result();
  return result;
}

}  // namespace

TrainedCodebook train_codebook(Engine& engine, const CodebookTraining& training) {
  const Interrupt interrupt;
  try {
    return train_layers(engine, training);
  } catch (const std::runtime_error&) {
    if (!Interrupt::requested()) throw;
  }
  std::error_code ignored;
  if (!std::filesystem::exists(training.partial, ignored)) throw llama::Error("interrupted");
  throw llama::Error("interrupted; the same command goes on from the layers kept in " + training.partial.string());
}

}  // namespace cli
