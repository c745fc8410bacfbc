#include "train/training.h"

#include <algorithm>

#include "commands/usage_error.h"
#include "measure/text_file.h"
#include "terminal/interrupt.h"
#include "terminal/output_file.h"

namespace cli {
void add_training_inputs(CLI::App& command, TrainingOptions& options) {
  command.add_option("--model", options.model, "Model directory")->required();
  command.add_option("--text", options.texts, "Text file; give several to mix them evenly")
      ->required()
      ->take_all()
      ->allow_extra_args(false);
}

void add_training_options(CLI::App& command, TrainingOptions& options, const std::string& out_help) {
  command.add_option("--tokens", options.tokens, "Tokens to train on, in windows of 2048")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->capture_default_str();
  command.add_option("--seed", options.seed, "Of everything random")->capture_default_str();
  command.add_option("--out", options.out, out_help)->required();
  add_compute_options(command, options.compute);
  command.add_option("--device", options.compute.device, "Only cpu")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command.add_flag("--json", options.json, "Print one JSON object");
}

void check_training(const TrainingOptions& options, const std::string& name) {
  if (options.compute.device != "cpu") {
    throw UsageError("--device " + options.compute.device + ": " + name + " runs on the CPU only");
  }
  check_writable(options.out);
}

TrainingInputs::TrainingInputs(const TrainingOptions& options)
    : contents(read_corpora(options.texts)), engine(options.model, options.compute) {
  for (const std::string& text : contents) tokens.push_back(engine.tokenizer.encode(text));
}

int32_t TrainingBar::hook(void* user, double done) {
  auto& self = *static_cast<TrainingBar*>(user);
  self.advance_to(std::min(static_cast<int64_t>(done * static_cast<double>(self.total_)), self.total_));
  return Interrupt::requested() ? 1 : 0;
}

void TrainingBar::finish() { advance_to(total_); }

void TrainingBar::advance_to(int64_t steps) {
  bar_->advance(steps - steps_);
  steps_ = steps;
}

}  // namespace cli
