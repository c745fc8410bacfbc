#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "kvq.hpp"
#include "options/engine.h"

namespace cli {

struct CodebookTraining {
  kvq_codebook_trainer_options options{};  // without the model's sizes and the note
  std::vector<std::span<const int32_t>> windows;
  std::string note;
  std::filesystem::path partial;  // where finished layers are kept until all are
};

struct TrainedCodebook {
  kvq::Codebook codebook;
  std::vector<double> layer_seconds;  // negative: the layer was finished by an earlier run
};

/// Run the model over the windows, collect the keys and values of the layers that are not in `partial` yet, and train
/// them one by one. After an interruption and every other failure `partial` holds the layers finished so far.
TrainedCodebook train_codebook(Engine& engine, const CodebookTraining& training);

}  // namespace cli
