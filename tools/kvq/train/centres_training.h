#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvq.hpp"
#include "options/engine.h"

namespace cli {

struct CentresTraining {
  kvq_centres_trainer_options options{};  // without the model's sizes and the note
  std::vector<std::span<const int32_t>> windows;
  std::string note;
};

struct TrainedCentres {
  kvq::Centres centres;
  std::vector<double> layer_seconds;
};

/// Run the model over the windows, collect its keys and values, and train the layers one by one.
TrainedCentres train_centres(Engine& engine, const CentresTraining& training);

}  // namespace cli
