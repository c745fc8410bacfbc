#pragma once

#include "allocation/allocator.h"
#include "allocation/measurements.h"
#include "llama/model.h"
#include "options/model_options.h"
#include "terminal/progress.h"

namespace cli {

/// How far a change in one layer moves a model's next-token distributions, over windows of tokens that the unchanged
/// model with an FP16 cache has read once. A run begins at the layer that changes, with what that layer read then.
class Probe {
 public:
  /// Reads the windows, and keeps what every layer reads and all logits. `progress` advances by a step for each layer
  /// and window.
  Probe(Engine& engine, std::vector<std::vector<int32_t>> windows, int32_t chunk, Progress& progress);

  /// Mean D(unchanged || as the model is now) in nats, with caches of `format`, if nothing before `first_layer` has
  /// changed. `progress` advances by a step for each layer from there on and window.
  double divergence(const llama::CacheFormat& format, int32_t first_layer, Progress& progress) const;
  std::vector<std::vector<int32_t>> windows() const;
  int64_t steps(int32_t first_layer) const;

 private:
  struct Window {
    std::vector<int32_t> tokens;
    std::vector<std::vector<float>> inputs;  // [layers], [tokens, hidden]
    std::vector<float> logits;               // [tokens, vocabulary]
  };

  void read(Window& window, Progress& progress);

  Engine& engine_;
  int32_t chunk_;
  std::vector<Window> windows_;
};

/// Which tokens a model reads to be measured.
struct ProbeText {
  std::string file;       // empty: the model writes them
  int64_t tokens = 4096;  // about
  uint64_t seed = 1;      // of what the model writes
};

/// Windows of tokens, each read from an empty cache.
class ProbeWindows {
 public:
  ProbeWindows(const Engine& engine, ProbeText text);

  /// Whether windows are so long that most of their tokens see what caches store with scales. Pages stay FP16 until
  /// 128 tokens have told the scales, so that short windows would say that nothing is lost.
  bool show_scales() const;
  /// In words; the same only for the same tokens in the same windows.
  const std::string& note() const { return note_; }
  /// What the model writes takes as long as it takes to generate it.
  std::vector<std::vector<int32_t>> tokens(Engine& engine) const;

 private:
  ProbeText text_;
  int32_t length_;  // of a window that the model writes
  std::string note_;
  std::vector<std::vector<int32_t>> read_;  // from a file
};

/// Other weights in the place of a model's own while it lives.
class ExchangedLayers {
 public:
  using Layers = std::vector<std::pair<llama::LinearLayer, llama::Linear>>;

  ExchangedLayers(llama::Model& model, Layers others) : model_(model), layers_(std::move(others)) { exchange(); }
  ~ExchangedLayers() { exchange(); }
  ExchangedLayers(const ExchangedLayers&) = delete;
  ExchangedLayers& operator=(const ExchangedLayers&) = delete;

 private:
  void exchange() {
    for (auto& [layer, linear] : layers_) linear = model_.exchange(layer, std::move(linear));
  }

  llama::Model& model_;
  Layers layers_;  // with the model's own weights, once exchanged
};

inline constexpr int64_t kTokensForScales = 512;  // of a window that is measured with scales of channels
/// Formats that bit allocation chooses among for keys and values.
inline const std::vector<double> kKeptShares = {0.5, 0.25, 0.125};  // of tokens that eviction may keep
inline const std::vector<std::string> kFormatChoices = {"fp16", "int8", "int4+hadamard", "gs4", "gt3",
                                                        "gs3",  "gt2",  "gs2",           "gt1", "gs1"};

/// Those of `schemes` whose errors are not above the largest noise that was measured: beyond, what is lost grows faster
/// than the error.
std::vector<std::string> judged_schemes(const Measurements& known, std::vector<std::string> schemes);
Probe make_probe(Engine& engine, const ProbeWindows& windows, int32_t chunk);

/// Measure what plans of the request lose, as far as the file does not say it yet. Goes on where an interrupted run
/// ended. \param chunk  tokens that the model reads at once. \returns  seconds that this took
double measure_losses(Measurements& known, Engine& engine, const ProbeWindows& windows,
                      const AllocationRequest& request, int32_t chunk);

}  // namespace cli
