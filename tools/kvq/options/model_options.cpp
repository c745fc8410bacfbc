#include "options/model_options.h"

#include "llama/error.h"
#include "options/command.h"

namespace cli {
namespace {

/// An Error unless the model's matrices are those of the plan.
void check_schemes(const kvq::Plan& plan, const std::string& path, Engine& engine) {
  for (const llama::LinearLayer& layer : llama::all_linear_layers(engine.model.config())) {
    const char* planned = plan.scheme(layer.name);
    if (planned == nullptr) continue;
    const auto& packed = engine.model.linear(layer).packed;
    const std::string found = packed != nullptr ? packed->describe().scheme : "";
    if (found == planned) continue;
    throw llama::Error(path + " has " + planned + " for " + layer.name + ", which is " +
                       (found.empty() ? "not packed" : found) + ": make the weights with `kvq quantize --plan " + path +
                       " --out FILE` and give --weights FILE, or take the formats of the cache alone with --kv " +
                       path);
  }
}

}  // namespace

Engine ModelOptions::load() const {
  Engine engine(model, compute, weights);
  if (plan.empty()) return engine;
  check_schemes(load_plan(engine.context, plan), plan, engine);
  return engine;
}

void add_model_option(Command command, std::string& model, const std::string& help) {
  command.add_option("--model", model, help).not_empty().required();
}

void add_model_options(Command command, ModelOptions& options) {
  add_model_option(command, options.model);
  command.add_option("--weights", options.weights,
                     "File of `kvq quantize` to take the weights from (default: the model's own)");
  command.add_option("--plan", options.plan,
                     "File of `kvq plan`: stands for --kv with its formats, and for weights that were made with it");
  command.on_parsed([command, &options] {
    if (!options.plan.empty() && !command.was_given("--kv")) options.kv = options.plan;
  });
}

void add_text_option(Command command, std::string& text) {
  command.add_option("--text", text, "Text file; its tokens are used without BOS").required();
}

void add_kv_option(Command command, std::string& kv, const std::string& help) {
  command.add_option("--kv", kv, help).show_default();
}

void add_sampling_options(Command command, SamplingOptions& options) {
  command.add_option("--temperature", options.temperature, "0: always the likeliest token")
      .range(0.0, 100.0)
      .show_default();
  command.add_option("--top-p", options.top_p, "With a temperature: choose among the likeliest tokens of this mass")
      .range(0.0, 1.0)
      .show_default();
  add_seed_option(command, options.seed, "With a temperature: start of the random numbers");
}

void add_stop_option(Command command, std::vector<std::string>& stops) {
  command.add_option("--stop", stops, "End before this text; may be repeated").repeatable().not_empty();
}

Option add_context_option(Command command, int32_t& context, int32_t least, const std::string& help) {
  return command.add_option("--context", context, help).range(least, 1 << 24).show_default();
}

void add_chunk_option(Command command, int32_t& chunk, const std::string& help) {
  command.add_option("--chunk", chunk, help).range(1, 1 << 16).show_default();
}

void check_context(int32_t context, const llama::ModelConfig& config) {
  if (context <= config.max_positions) return;
  throw UsageError("--context " + std::to_string(context) + " exceeds the model's " +
                   std::to_string(config.max_positions) + " positions");
}

}  // namespace cli
