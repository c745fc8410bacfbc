#include "train/router_training.h"

#include "bench/stopwatch.h"
#include "measure/perplexity.h"
#include "terminal/interrupt.h"
#include "terminal/progress.h"
#include "train/training_bar.h"

namespace cli {
namespace {

constexpr int32_t kScoredChunk = 256;  // tokens that the model takes at once where it is only scored
constexpr int64_t kTrainSteps = 1000;  // of the progress bar

kvq::RouterTrainer make_trainer(Engine& engine, const RouterTraining& training) {
  const kvq::Policy policy = kvq::Policy::load(engine.context, training.policy);
  kvq_cache_options cache = llama::cache_options(engine.model);
  cache.codebook = training.codebook;
  kvq_router_trainer_options options = training.options;
  options.note = training.note.c_str();
  return kvq::RouterTrainer(engine.context, cache, policy, options);
}

int64_t count_tokens(const RouterTraining& training) {
  int64_t tokens = 0;
  for (const auto& window : training.windows) tokens += static_cast<int64_t>(window.size());
  return tokens;
}

/// The model's mean negative log-likelihood of a token.
double measure_loss(Engine& engine, const RouterTraining& training) {
  Progress progress("loss", count_tokens(training));
  llama::Session session(engine.model, engine.context, nullptr);
  double sum = 0.0;
  double tokens = 0.0;
  for (const std::span<const int32_t> window : training.windows) {
    Interrupt::check();
    if (window.size() < 2) continue;
    const PerplexityResult result = measure_perplexity(engine.model, session, window, kScoredChunk, progress);
    sum += result.window_mean_nll.front() * static_cast<double>(result.tokens);
    tokens += static_cast<double>(result.tokens);
  }
  return sum / tokens;
}

/// A layer's part of a text enters the trainer as a whole, so the model takes a whole window at once.
void collect(Engine& engine, kvq::RouterTrainer& trainer, const RouterTraining& training) {
  const auto n_layers = int64_t{engine.model.config().n_layers};
  Progress progress("pages", count_tokens(training) * n_layers);
  llama::Session session(engine.model, engine.context, nullptr);
  session.observe([&](int32_t layer, const llama::ObservedAttention& seen) {
    Interrupt::check();
    trainer.add(layer, seen.n, seen.q, seen.k, seen.v, KVQ_F32);
    progress.advance(seen.n);
  });
  for (const std::span<const int32_t> window : training.windows) {
    session.clear();
    session.forward(window, false);
  }
}

}  // namespace

TrainedRouter train_router(Engine& engine, const RouterTraining& training) {
  const Interrupt interrupt;
  kvq::RouterTrainer trainer = make_trainer(engine, training);
  const Stopwatch collecting;
  const double loss = training.options.method == KVQ_ROUTER_PAPER ? measure_loss(engine, training) : 0.0;
  collect(engine, trainer, training);
  const double label_seconds = collecting.seconds();
  const Stopwatch running;
  Progress bar("training", kTrainSteps);
  TrainingBar progress(bar, kTrainSteps);
  trainer.run(loss, TrainingBar::hook, &progress);
  return {.router = trainer.result(), .label_seconds = label_seconds, .training_seconds = running.seconds()};
}

}  // namespace cli
