#include "options/model_options.h"

#include <CLI/CLI.hpp>

#include "options/usage_error.h"

namespace cli {

void add_model_option(CLI::App& command, std::string& model) {
  command.add_option("--model", model, "Model directory")->required();
}

void add_model_options(CLI::App& command, ModelOptions& options) {
  add_model_option(command, options.model);
  command.add_option("--weights", options.weights,
                     "File of `kvq quantize` to take the weights from (default: the model's own)");
}

void add_text_option(CLI::App& command, std::string& text) {
  command.add_option("--text", text, "Text file; its tokens are used without BOS")->required();
}

void add_kv_option(CLI::App& command, std::string& kv, const std::string& help) {
  command.add_option("--kv", kv, help)->capture_default_str();
}

void add_context_option(CLI::App& command, int32_t& context, int32_t least, const std::string& help) {
  command.add_option("--context", context, help)->check(CLI::Range(least, 1 << 24))->capture_default_str();
}

void add_chunk_option(CLI::App& command, int32_t& chunk, const std::string& help) {
  command.add_option("--chunk", chunk, help)->check(CLI::Range(1, 1 << 16))->capture_default_str();
}

void check_context(int32_t context, const llama::ModelConfig& config) {
  if (context <= config.max_positions) return;
  throw UsageError("--context " + std::to_string(context) + " exceeds the model's " +
                   std::to_string(config.max_positions) + " positions");
}

}  // namespace cli
