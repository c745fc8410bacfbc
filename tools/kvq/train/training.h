#pragma once

#include "bench/timing.h"
#include "llama/hessians.h"
#include "llama/model.h"
#include "llama/tokenizer.h"
#include "options/command.h"
#include "options/common.h"
#include "options/model_options.h"
#include "terminal/progress.h"

namespace cli {

/// Texts to train on, in a model's tokens and in windows of 2048, or of what the model or few tokens allow.
struct CalibrationTexts {
  CalibrationTexts() = default;

  /// Takes about `wanted` tokens, as many from each text and spread evenly over it. Where a text is too short for its
  /// share, the others give more; one shorter than a window gives what it has. Windows of different texts alternate.
  /// \param files  names of the texts.
  CalibrationTexts(const std::vector<std::string>& files, const std::vector<std::string>& texts,
                   const llama::Tokenizer& tokenizer, const llama::ModelConfig& config, int64_t wanted);

  std::vector<std::vector<int32_t>> tokens;  // of each text
  std::vector<llama::Tokens> windows;
  std::string note;  // in words; the same only for the same tokens in the same windows
};

struct TrainingOptions {
  std::string model;
  std::vector<std::string> texts;
  int64_t tokens = 49152;
  uint64_t seed = 1;
  std::string out;
  ComputeOptions compute;
  bool json = false;
};

/// Add --model and --text.
void add_training_inputs(Command command, TrainingOptions& options);

/// Add the others; `out_help` describes --out.
void add_training_options(Command command, TrainingOptions& options, const std::string& out_help);

/// The model and the texts, which are read first because that takes less time.
struct TrainingInputs {
  explicit TrainingInputs(const TrainingOptions& options);

  std::vector<std::string> contents;  // of the files
  Engine engine;
  CalibrationTexts texts;
};

/// Run a model over windows, each from an empty session, for what the session's observers see. Ends with an Error on an
/// interruption. \param label  of the progress bar.
void run_windows(llama::Session& session, std::span<const llama::Tokens> windows, const std::string& label);

/// Run the model over windows and hand on the queries, `[n, q_heads, head_dim]`, and the keys and values of every
/// layer, `[n, kv_heads, head_dim]`, in host memory; without `queries`, which take time to copy, q is nullptr.
using TakeTokens = std::function<void(int32_t layer, int32_t n, const float* q, const float* k, const float* v)>;
void collect_tokens(Engine& engine, std::span<const llama::Tokens> windows, bool queries, const TakeTokens& take);

/// Say in a trainer's options which model it is for. Refers to `note`.
template <class TrainerOptions>
void set_model(TrainerOptions& options, const Engine& engine, const std::string& note) {
  const llama::ModelConfig& config = engine.model.config();
  options.n_layers = config.n_layers;
  options.kv_heads = config.kv_heads;
  options.head_dim = config.head_dim;
  options.rope = KVQ_ROPE_HALF;
  options.model_id = engine.model.weights().fingerprint;
  options.note = note.c_str();
}

inline constexpr int64_t kLayerSteps = 1000;  // of a bar over layers

/// Train one layer, which moves `bar` by kLayerSteps. \returns  seconds
template <class Trainer>
double train_layer(Trainer& trainer, int32_t layer, Progress& bar) {
  const Stopwatch watch;
  TrainingBar progress(bar, kLayerSteps);
  trainer.run(layer, TrainingBar::hook, &progress);
  progress.finish();
  return watch.seconds();
}

/// What the linear layers of a model read when it runs over texts: of as many layers at once as memory has room for.
class HessianCollection {
 public:
  using Layers = std::span<const llama::LinearLayer>;
  using IsWanted = std::function<bool(const llama::LinearLayer&)>;

  /// Runs where quantization is to be done or, if the model does not fit there, on the CPU.
  /// \param bytes      of sums at once; 0: half of the device's memory.
  /// \param is_wanted  whose inputs to collect.
  HessianCollection(const std::filesystem::path& model, const ComputeOptions& compute,
                    std::span<const llama::Tokens> windows, uint64_t bytes, IsWanted is_wanted);

  /// The layers in runs that collect() has room for. An Error if there is none for a single one.
  std::vector<Layers> runs(Layers layers) const;

  /// Run the model over the windows. What was collected before is gone.
  void collect(Layers layers, const std::string& label);

  std::span<const float> of(const llama::LinearLayer& layer) { return hessians_->of(layer); }

 private:
  Engine engine_;
  std::span<const llama::Tokens> windows_;
  uint64_t bytes_;
  IsWanted is_wanted_;
  std::optional<llama::Hessians> hessians_;
};

}  // namespace cli
