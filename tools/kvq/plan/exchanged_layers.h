#pragma once

#include <utility>
#include <vector>

#include "llama/model.h"

namespace cli {

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

}  // namespace cli
