#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "options/command.h"
#include "options/compute.h"
#include "options/engine.h"
#include "train/calibration.h"

namespace cli {

/// What every `train` can be told.
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

/// A UsageError unless the device is the CPU. `name`: of the command.
void require_cpu(const TrainingOptions& options, const std::string& name);

/// The model and the texts, which are read first because that takes less time.
struct TrainingInputs {
  explicit TrainingInputs(const TrainingOptions& options);

  std::vector<std::string> contents;  // of the files
  Engine engine;
  CalibrationTexts texts;
};

}  // namespace cli
