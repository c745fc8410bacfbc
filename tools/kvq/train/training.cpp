#include "train/training.h"

#include "options/model_options.h"
#include "options/command.h"
#include "terminal/text_file.h"

namespace cli {

void add_training_inputs(Command command, TrainingOptions& options) {
  add_model_option(command, options.model);
  command.add_option("--text", options.texts, "Text file; give several to mix them evenly")
      .required()
      .repeatable_with_dots();
}

void add_training_options(Command command, TrainingOptions& options, const std::string& out_help) {
  command.add_option("--tokens", options.tokens, "Tokens to train on, in windows of 2048")
      .range(int64_t{1}, int64_t{1} << 40)
      .show_default();
  add_seed_option(command, options.seed, "Of everything random");
  command.add_option("--out", options.out, out_help).not_empty().required();
  add_compute_options(command, options.compute);
  add_device_options(command, options.compute);
  add_json_flag(command, options.json);
}

void require_cpu(const TrainingOptions& options, const std::string& name) {
  if (options.compute.device == "cpu") return;
  throw UsageError("--device " + options.compute.device + ": " + name + " runs on the CPU only");
}

TrainingInputs::TrainingInputs(const TrainingOptions& options)
    : contents(read_corpora(options.texts)),
      engine(options.model, options.compute),
      texts(options.texts, contents, engine.tokenizer, engine.model.config(), options.tokens) {}

}  // namespace cli
