#include "commands/commands.h"
#include "measure/generation.h"
#include "terminal/files.h"

namespace cli {
namespace {

struct EvalGenerateOptions : ReferenceOptions {
  std::string text;
  ContinuationOptions measured;
};

struct Summary {
  size_t prompts = 0;
  size_t repeating = 0;
  size_t reference_repeating = 0;
  size_t never_differ = 0;
  std::optional<size_t> median_difference;

  double share(size_t count) const { return static_cast<double>(count) / static_cast<double>(prompts); }
};

Summary summary_of(const std::vector<ComparedContinuation>& continuations) {
  Summary summary;
  summary.prompts = continuations.size();
  std::vector<std::optional<size_t>> differences;
  for (const ComparedContinuation& each : continuations) {
    differences.push_back(each.first_difference);
    summary.repeating += each.format.repeats ? 1 : 0;
    summary.reference_repeating += each.reference && each.reference->repeats ? 1 : 0;
    summary.never_differ += each.first_difference ? 0 : 1;
  }
  summary.median_difference = median_difference(differences);
  return summary;
}

std::string ending_text(const Continuation& continuation) {
  return std::to_string(continuation.tokens.size()) + (continuation.repeats ? ", repeats" : "");
}

Figures figures_of(const std::vector<ComparedContinuation>& continuations) {
  Figures figures;
  for (const ComparedContinuation& each : continuations) {
    figures.begin_row();
    figures.add("prompt from\ntoken", "begin", each.begin, std::to_string(each.begin));
    figures.add("tokens with\n--kv", "generated_tokens", each.format.tokens.size(), ending_text(each.format));
    figures.add("", "repeats", each.format.repeats, "");
    if (!each.reference) continue;
    const Continuation& reference = *each.reference;
    figures.add("tokens with\nreference", "reference_generated_tokens", reference.tokens.size(),
                ending_text(reference));
    figures.add("", "reference_repeats", reference.repeats, "");
    figures.add("first\ndifference", "first_difference", json_of(each.first_difference),
                each.first_difference ? std::to_string(*each.first_difference) : "never");
  }
  return figures;
}

void print_result_json(const EvalGenerateOptions& options, const ContinuationResult& result,
                       const llama::Weights& weights) {
  const Summary summary = summary_of(result.continuations);
  const std::string reference = options.reference();
  Json object;
  object["repeating"] = summary.share(summary.repeating);
  if (!reference.empty()) {
    object["against"] = reference;
    object["reference_repeating"] = summary.share(summary.reference_repeating);
    object["median_first_difference"] = json_of(summary.median_difference);
    object["never_differ"] = summary.share(summary.never_differ);
  }
  add_sizes(object, result.usage, weights);
  object["prompt_tokens"] = options.measured.prompt_tokens;
  object["tokens"] = options.measured.tokens;
  object["chunk"] = options.measured.chunk;
  object["device"] = options.compute.device;
  object["prompts"] = figures_of(result.continuations).objects();
  print_json(object);
}

std::string comparison_text(const EvalGenerateOptions& options, const Summary& summary) {
  const std::string reference = options.reference();
  if (reference.empty()) return "against  nothing: " + options.why_no_reference() + "\n";
  const std::string median = summary.median_difference
                                 ? "first at token " + std::to_string(*summary.median_difference) + " (median)"
                                 : "in less than half of them";
  return "against  " + reference + ", of which " + std::to_string(summary.reference_repeating) + " repeat\n" +  //
         "differ   " + median + "; " + std::to_string(summary.never_differ) + " never\n";
}

void print_result(const EvalGenerateOptions& options, const ContinuationResult& result, const llama::Weights& weights) {
  if (options.json) return print_result_json(options, result, weights);
  const Summary summary = summary_of(result.continuations);
  print_text(figures_of(result.continuations).table() + "\n" +                                             //
             "repeat   " + std::to_string(summary.repeating) + " of " + std::to_string(summary.prompts) +  //
             " continuations with --kv " + options.kv + "\n" +                                             //
             comparison_text(options, summary) +                                                           //
             "cache    " + usage_text(result.usage) + "\n");
}

void check_positions(const ContinuationOptions& measured, const llama::ModelConfig& config) {
  const auto bos = static_cast<int64_t>(with_bos(config, {}).size());
  if (bos + measured.prompt_tokens + measured.tokens <= config.max_positions) return;
  throw UsageError("--prompt-tokens " + std::to_string(measured.prompt_tokens) + " and --tokens " +
                   std::to_string(measured.tokens) + " exceed the model's " + std::to_string(config.max_positions) +
                   " positions");
}

ContinuationResult measure(Engine& engine, llama::Tokens tokens, const EvalGenerateOptions& options) {
  const Spec format = load_judged_spec(engine, options.kv);
  const std::optional<Spec> reference = options.load_reference(engine);
  Progress progress("text", continuation_steps(options.measured) * (reference ? 2 : 1));
  return measure_continuations(engine, format, reference ? &*reference : nullptr, tokens, options.measured, progress);
}

void run(const EvalGenerateOptions& options) {
  Engine engine = options.load();
  const std::vector<int32_t> tokens = engine.tokenizer.encode(read_corpus(llama::path_of(options.text)));
  check_positions(options.measured, engine.model.config());
  print_result(options, measure(engine, tokens, options), engine.model.weights());
}

}  // namespace

void add_eval_generate(Command eval) {
  Command command = eval.add_command(
      "generate", "Where texts that a model writes first differ from those with an FP16 cache, and which repeat");
  command.footer(
      "Texts are greedy: always the likeliest token. One repeats if its last quarter has a period of at most 64\n"
      "tokens that fits in it twice: each token, after the first period, is the one a period before it. One that\n"
      "the model ends by itself does not repeat. Two differ first at the token, counted from 0, that is not the\n"
      "same or that only one of them has.");
  auto options = std::make_shared<EvalGenerateOptions>();
  ContinuationOptions& measured = options->measured;
  add_model_options(command, *options);
  command.add_option("--text", options->text, "Text file that prompts are taken from, at an even spread").required();
  add_kv_option(command, options->kv);
  add_against_option(command, *options);
  command.add_number("--prompts", measured.prompts, 1, 1 << 20, "Prompts, which do not overlap");
  command.add_number("--prompt-tokens", measured.prompt_tokens, 1, 1 << 24, "Tokens of a prompt, besides BOS");
  command.add_number("--tokens", measured.tokens, 1, 1 << 24, "Tokens to generate at most after a prompt");
  add_chunk_option(command, measured.chunk, "Tokens of a prompt that enter the cache at once");
  add_run_options(command, options->compute, options->json);
  command.on_run([options] { run(*options); });
}

}  // namespace cli
