#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvq.hpp"
#include "options/engine.h"

namespace cli {

struct RouterTraining {
  kvq_router_trainer_options options{};  // without the note
  std::vector<std::span<const int32_t>> windows;
  std::string note;
  std::string policy;                      // with the router's experts
  const kvq_codebook* codebook = nullptr;  // for an expert that is commvq
};

struct TrainedRouter {
  kvq::Router router;
  double label_seconds = 0.0;  // to run the model, and to store its keys and values in every format
  double training_seconds = 0.0;
};

/// Run the model over the windows, each a text by itself, and train routers on what it computes.
TrainedRouter train_router(Engine& engine, const RouterTraining& training);

}  // namespace cli
