#include "commands/commands.h"
#include "llama/system.h"
#include "measure/needle.h"

namespace cli {
namespace {

constexpr int32_t kMinNeedleContext = 64;

struct EvalNeedleOptions : ModelOptions {
  std::string text;
  NeedleOptions needle;
};

void print_result(const EvalNeedleOptions& options, const NeedleResult& result, const llama::Weights& weights) {
  const double accuracy = static_cast<double>(result.found) / options.needle.samples;
  if (options.json) {
    Json object;
    object["accuracy"] = accuracy;
    object["samples"] = options.needle.samples;
    add_sizes(object, result.usage, weights);
    object["context"] = options.needle.context;
    object["seed"] = options.needle.seed;
    object["device"] = options.compute.device;
    return print_json(object);
  }
  std::string depths;
  for (const bool found : result.found_at) depths += found ? '+' : '-';
  print_text("found  " + std::to_string(result.found) + " of " + std::to_string(options.needle.samples) +
             " keys with --kv " + options.kv + " in prompts of " + std::to_string(options.needle.context) +
             " tokens\n" +                                              //
             "depth  begin " + depths + " end (+ found, - missed)\n" +  //
             "cache  " + usage_text(result.usage) + "\n");
}

NeedleResult measure(Engine& engine, const EvalNeedleOptions& options) {
  const Spec format = load_judged_spec(engine, options.kv);
  const std::vector<int32_t> filler =
      filler_tokens(engine, llama::path_of(options.model), options.text, options.needle.context, options.needle.seed);
  Progress progress("needle", int64_t{options.needle.samples} * options.needle.context);
  return measure_needle(engine, format, filler, options.needle, progress);
}

void run(const EvalNeedleOptions& options) {
  Engine engine = options.load();
  check_context(options.needle.context, engine.model.config());
  print_result(options, measure(engine, options), engine.model.weights());
}

}  // namespace

void add_eval_needle(Command eval) {
  Command command = eval.add_command("needle", "Retrieval of a five-digit key hidden in filler text");
  auto options = std::make_shared<EvalNeedleOptions>();
  add_model_options(command, *options);
  command.add_option("--text", options->text, "Filler prose (default: the model's sample.txt, else made up)");
  add_kv_option(command, options->kv);
  add_context_option(command, options->needle.context, kMinNeedleContext, "Tokens of the prompt and the answer");
  command.add_number("--samples", options->needle.samples, 1, 1 << 20, "Keys to hide, one a prompt");
  add_seed_option(command, options->needle.seed, "Start of the random numbers");
  add_chunk_option(command, options->needle.chunk);
  command.add_flag("--compress-before-question", options->needle.compress_before_question,
                   "If --kv evicts: before the question arrives instead of after the whole prompt, which is harder");
  add_run_options(command, options->compute, options->json);
  command.on_run([options] { run(*options); });
}

}  // namespace cli
