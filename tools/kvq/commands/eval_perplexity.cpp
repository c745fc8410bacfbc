#include <algorithm>

#include "commands/commands.h"
#include "measure/perplexity.h"
#include "terminal/files.h"

namespace cli {
namespace {

struct EvalPerplexityOptions : ReferenceOptions {
  std::vector<std::string> formats{"gs4"};  // kv: all of them, in words
  std::string text;
  PerplexityOptions perplexity{.windows = 8};
  std::string recode_from;
  bool per_window = false;
};

struct EvalPerplexityMeasurement {
  std::vector<PerplexityResult> results;  // of each format
  std::vector<bool> evicts;
};

double rise_percent(const PerplexityResult& result) {
  return 100.0 * (result.perplexity / result.comparison->perplexity - 1.0);
}

std::string reference_text(const EvalPerplexityOptions& options) {
  return options.reference() + (options.against_original ? " and the model's own weights" : "");
}

void add_comparison(Json& object, const EvalPerplexityOptions& options, const PerplexityResult& result) {
  object["against"] = options.reference();
  if (options.against_original) object["against_original"] = true;
  object["reference_perplexity"] = result.comparison->perplexity;
  object["rise_percent"] = rise_percent(result);
  object["kl_mean"] = result.comparison->kl_mean;
  object["kl_p999"] = result.comparison->kl_p999;
  object["top1_agreement"] = result.comparison->top1_agreement;
}

std::string half_text(const PerplexityResult& result) { return result.second_half ? " of the same second halves" : ""; }

std::string comparison_text(const EvalPerplexityOptions& options, const PerplexityResult& result) {
  if (!result.comparison) return "against    nothing: " + options.why_no_reference() + "\n";
  const ReferenceComparison& comparison = *result.comparison;
  return "against    " + reference_text(options) + ", perplexity" + half_text(result) + " " +
         number_text(comparison.perplexity, 4) + ": rise " + signed_percent(rise_percent(result)) + "\n" +  //
         "divergence " + nats_text(comparison.kl_mean) + " nats on average (KL), at most " +
         number_text(comparison.kl_p999, 4) + " for 99.9 % of tokens\n" +  //
         "top token  the same after " + number_text(100.0 * comparison.top1_agreement, 2) + " % of tokens\n";
}

Json result_json(const EvalPerplexityOptions& options, const PerplexityResult& result, const llama::Weights& weights) {
  Json object;
  object["perplexity"] = result.perplexity;
  object["tokens"] = result.tokens;
  object["second_half"] = result.second_half;
  if (result.comparison) add_comparison(object, options, result);
  add_sizes(object, result.usage, weights);
  object["tokens_per_second"] = result.tokens_per_second;
  object["windows"] = result.window_mean_nll.size();
  object["context"] = options.perplexity.context;
  object["chunk"] = options.perplexity.chunk;
  if (!options.recode_from.empty()) object["recode_from"] = options.recode_from;
  object["device"] = options.compute.device;
  if (options.per_window) object["window_mean_nll"] = result.window_mean_nll;
  return object;
}

void print_results_json(const EvalPerplexityOptions& options, const std::vector<PerplexityResult>& results,
                        const llama::Weights& weights) {
  if (results.size() == 1) return print_json(result_json(options, results.front(), weights));
  Json object;
  object["formats"] = Json::array();
  for (size_t i = 0; i < results.size(); ++i) {
    Json each;
    each["kv"] = options.formats[i];
    each.update(result_json(options, results[i], weights));
    object["formats"].push_back(std::move(each));
  }
  print_json(object);
}

std::string extent_text(const EvalPerplexityOptions& options, const PerplexityResult& result) {
  return std::to_string(result.tokens) + " tokens in " + (result.second_half ? "second halves of " : "") +
         std::to_string(result.window_mean_nll.size()) + " windows of " + std::to_string(options.perplexity.context) +
         (options.recode_from.empty() ? "" : ",\nfirst halves recoded from " + options.recode_from) + "\n";
}

std::string warnings_text(const EvalPerplexityOptions& options, const EvalPerplexityMeasurement& measured) {
  std::string text;
  for (size_t i = 0; i < measured.results.size(); ++i) {
    const PerplexityResult& result = measured.results[i];
    if (!measured.evicts[i] || !result.comparison || rise_percent(result) <= kMuchLost) continue;
    text += too_much_evicted_text(options.formats[i], rise_percent(result), options.reference());
  }
  return text;
}

void print_windows(const PerplexityResult& result) {
  for (size_t i = 0; i < result.window_mean_nll.size(); ++i) {
    print_text("window " + std::to_string(i) + ": mean negative log-likelihood " +
               number_text(result.window_mean_nll[i], 6) + "\n");
  }
}

void print_result(const EvalPerplexityOptions& options, const EvalPerplexityMeasurement& measured,
                  const llama::Weights& weights) {
  const PerplexityResult& result = measured.results.front();
  if (options.per_window) print_windows(result);
  print_text("perplexity " + number_text(result.perplexity, 4) + " with --kv " + options.kv + " over " +
             extent_text(options, result) +                     //
             comparison_text(options, result) +                 //
             "cache      " + usage_text(result.usage) + "\n" +  //
             "weights    " + weight_bits_text(weights) + "\n" + "speed      " +
             number_text(result.tokens_per_second, 0) + " tokens per second\n" + warnings_text(options, measured));
}

void print_table(const EvalPerplexityOptions& options, const EvalPerplexityMeasurement& measured) {
  const std::vector<PerplexityResult>& results = measured.results;
  const bool second_half = results.front().second_half;
  std::vector<std::string> headings{"format", "bits per\nscalar",
                                    second_half ? "perplexity of\nsecond halves" : "perplexity"};
  const bool compared = results.front().comparison.has_value();
  if (compared) headings.insert(headings.end(), {"rise", "KL\nmean", "KL\n99.9 %", "same top\ntoken"});
  Table table(std::move(headings));
  for (size_t i = 0; i < results.size(); ++i) {
    const PerplexityResult& result = results[i];
    std::vector<std::string> cells{options.formats[i], number_text(result.usage.bits_per_scalar, 2),
                                   number_text(result.perplexity, 4)};
    if (compared) {
      cells.insert(cells.end(), {signed_percent(rise_percent(result)), nats_text(result.comparison->kl_mean),
                                 number_text(result.comparison->kl_p999, 3),
                                 number_text(100.0 * result.comparison->top1_agreement, 2) + " %"});
    }
    table.add_row(std::move(cells));
  }
  const std::string against =
      compared ? "compared with " + reference_text(options) + ", perplexity" + half_text(results.front()) + " " +
                     number_text(results.front().comparison->perplexity, 4) + (second_half ? ",\nover " : ", over ")
               : "compared with nothing, over ";
  print_text(table.text() + "\n" + against + extent_text(options, results.front()) + warnings_text(options, measured));
}

void print_results(const EvalPerplexityOptions& options, const EvalPerplexityMeasurement& measured,
                   const llama::Weights& weights) {
  const std::vector<PerplexityResult>& results = measured.results;
  if (options.json) return print_results_json(options, results, weights);
  if (results.size() == 1) return print_result(options, measured, weights);
  if (options.per_window) {
    for (size_t i = 0; i < results.size(); ++i) {
      print_text(options.formats[i] + "\n");
      print_windows(results[i]);
    }
  }
  print_table(options, measured);
}

std::optional<Spec> load_recoded(Engine& engine, const EvalPerplexityOptions& options) {
  if (options.recode_from.empty()) return {};
  Spec from = load_spec(engine, options.recode_from, "--recode-from");
  if (from.evicts()) throw UsageError("--recode-from " + options.recode_from + " evicts: name a format alone");
  return from;
}

EvalPerplexityMeasurement measure(Engine& engine, llama::Tokens tokens, const EvalPerplexityOptions& options) {
  PerplexityOptions measured = options.perplexity;
  const std::optional<Spec> recoded = load_recoded(engine, options);
  if (recoded) measured.recode_from = &*recoded;
  EvalPerplexityMeasurement measurement;
  std::vector<Spec> formats;
  for (const std::string& kv : options.formats) {
    formats.push_back(load_judged_spec(engine, kv));
    measurement.evicts.push_back(formats.back().evicts());
    if (measured.context == 2 && (measured.second_half || recoded || formats.back().evicts())) {
      throw UsageError("--context 2 leaves no token of the second half to score");
    }
  }
  std::optional<Engine> original;
  if (options.against_original) original.emplace(options.model, options.compute);
  Engine& other = original ? *original : engine;
  const std::optional<Spec> format = options.load_reference(other);
  std::optional<PerplexityReference> reference;
  if (format) reference.emplace(PerplexityReference{other, *format});
  const size_t windows = first_windows(tokens, measured.context, measured.windows).size();
  const size_t runs = formats.size() + (reference ? 1 : 0);
  Progress progress("perplexity", static_cast<int64_t>(windows * runs) * measured.context);
  measurement.results =
      measure_perplexities(engine, formats, tokens, measured, progress, reference ? &*reference : nullptr);
  return measurement;
}

void run(EvalPerplexityOptions& options) {
  if (options.kv == options.plan && !options.plan.empty()) options.formats = {options.plan};  // no --kv
  options.kv = joined(options.formats);
  Engine engine = options.load();
  const std::vector<int32_t> tokens = engine.tokenizer.encode(read_corpus(llama::path_of(options.text)));
  check_context(options.perplexity.context, engine.model.config());
  const EvalPerplexityMeasurement measured = measure(engine, tokens, options);
  print_results(options, measured, engine.model.weights());
}

}  // namespace

void add_eval_perplexity(Command eval) {
  Command command = eval.add_command(
      "perplexity", "Perplexity of a text, tokens seeing compressed pages, and what is lost beside an FP16 cache");
  auto options = std::make_shared<EvalPerplexityOptions>();
  add_model_options(command, *options);
  add_text_option(command, options->text);
  command.add_option("--kv", options->formats, spec_help() + "; may be repeated, for a table")
      .repeatable()
      .show_default();
  add_against_option(command, *options);
  command.add_flag("--against-original", options->against_original,
                   "Compare with the model's own weights instead of those of --weights");
  add_context_option(command, options->perplexity.context, 2, "Tokens of a window");
  command.add_number("--windows", options->perplexity.windows, 0, 1 << 30, "At most the first N windows; 0: all");
  add_chunk_option(command, options->perplexity.chunk);
  add_compute_options(command, options->compute);
  add_device_options(command, options->compute);
  command.add_flag(
      "--second-half", options->perplexity.second_half,
      "Score only the second half of each window; always so if --kv evicts, which happens between the halves");
  command.add_option("--recode-from", options->recode_from,
                     "Keep the first half of each window in this format, recode it to --kv, and score the second half");
  command.add_flag("--per-window", options->per_window, "Report every window too");
  add_json_flag(command, options->json);
  command.on_run([options] { run(*options); });
}

}  // namespace cli
