#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "llama/cache_format.h"
#include "options/engine.h"
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

  /// Tokens of each window.
  std::vector<std::vector<int32_t>> windows() const;
  /// Steps of a run from a layer on.
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

}  // namespace cli
