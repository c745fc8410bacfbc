#include "train/centres_training.h"

#include "bench/stopwatch.h"
#include "llama/error.h"
#include "terminal/interrupt.h"
#include "terminal/progress.h"
#include "train/calibration.h"
#include "train/training_bar.h"

namespace cli {
namespace {

kvq::CentresTrainer make_trainer(Engine& engine, const CentresTraining& training) {
  const llama::ModelConfig& config = engine.model.config();
  kvq_centres_trainer_options options = training.options;
  options.n_layers = config.n_layers;
  options.kv_heads = config.kv_heads;
  options.head_dim = config.head_dim;
  options.rope = KVQ_ROPE_HALF;
  options.model_id = engine.model.weights().fingerprint;
  options.note = training.note.c_str();
  return kvq::CentresTrainer(engine.context, options);
}

void collect(Engine& engine, kvq::CentresTrainer& trainer, const std::vector<std::span<const int32_t>>& windows) {
  llama::Session session(engine.model, engine.context, nullptr);
  session.observe([&](int32_t layer, const llama::ObservedAttention& seen) {
    const HostTokens tokens(engine.model, seen);
    trainer.add(layer, seen.n, tokens.k(), tokens.v(), KVQ_F32);
  });
  run_windows(session, windows, "keys and values");
}

TrainedCentres train_layers(Engine& engine, const CentresTraining& training) {
  const int32_t n_layers = engine.model.config().n_layers;
  kvq::CentresTrainer trainer = make_trainer(engine, training);
  collect(engine, trainer, training.windows);
  TrainedCentres result{.centres = nullptr, .layer_seconds = {}};
  Progress bar("training", n_layers * kLayerSteps);
  for (int32_t layer = 0; layer < n_layers; ++layer) {
    const Stopwatch watch;
    TrainingBar progress(bar, kLayerSteps);
    trainer.run(layer, TrainingBar::hook, &progress);
    progress.finish();
    result.layer_seconds.push_back(watch.seconds());
  }
  result.centres = trainer.result();
  return result;
}

}  // namespace

TrainedCentres train_centres(Engine& engine, const CentresTraining& training) {
  const Interrupt interrupt;
  try {
    return train_layers(engine, training);
  } catch (const std::runtime_error&) {
    if (!Interrupt::requested()) throw;
  }
  throw llama::Error("interrupted");
}

}  // namespace cli
