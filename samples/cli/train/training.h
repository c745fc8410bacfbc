#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "commands/compute.h"
#include "terminal/progress.h"

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
void add_training_inputs(CLI::App& command, TrainingOptions& options);

/// Add the others; `out_help` describes --out.
void add_training_options(CLI::App& command, TrainingOptions& options, const std::string& out_help);

/// A UsageError unless the device is the CPU, an Error unless --out can be written. `name`: of the command.
void check_training(const TrainingOptions& options, const std::string& name);

/// The model, and the tokens of every text; texts are read first, which takes less time.
struct TrainingInputs {
  explicit TrainingInputs(const TrainingOptions& options);

  std::vector<std::string> contents;
  Engine engine;
  std::vector<std::vector<int32_t>> tokens;
};

/// Moves a bar by `total` steps while the library trains something, and ends that on an interruption.
class TrainingBar {
 public:
  TrainingBar(Progress& bar, int64_t total) : bar_(&bar), total_(total) {}

  /// A kvq_progress_hook; `user` is a TrainingBar.
  static int32_t hook(void* user, double done);
  /// The steps that are left.
  void finish();

 private:
  void advance_to(int64_t steps);

  Progress* bar_;
  int64_t total_;
  int64_t steps_ = 0;
};

}  // namespace cli
