#include <memory>

#include "commands/commands.h"
#include "commands/eviction_report.h"
#include "measure/eviction_quality.h"
#include "measure/filler.h"
#include "measure/perplexity.h"
#include "options/model_options.h"
#include "options/command.h"
#include "terminal/text_file.h"

namespace cli {
namespace {

constexpr int32_t kMinEvictionContext = 64;
constexpr const char* kAnyBudget = ":100%";  // every compression names one of its own

const std::vector<std::string>& all_methods() {
  static const std::vector<std::string> methods(kEvictionMethods.begin(), kEvictionMethods.end());
  return methods;
}

struct EvalEvictionOptions : ModelOptions {
  std::string text;
  std::vector<std::string> methods = all_methods();
  std::vector<std::string> budgets{"64", "128", "256", "512"};
  EvictionOptions measured;
};

void check(const EvalEvictionOptions& options, const llama::ModelConfig& config) {
  check_context(options.measured.context, config);
  if (options.measured.windows == 0 && options.measured.needles == 0) {
    throw UsageError("--windows 0 and --needles 0 leave nothing to measure");
  }
}

/// The cache without eviction, then one for each method.
std::vector<Spec> load_formats(const Engine& engine, const EvalEvictionOptions& options) {
  std::vector<Spec> formats;
  formats.push_back(load_spec(engine, options.kv));
  if (formats.front().evicts()) {
    throw UsageError("--kv " + options.kv + " evicts already: name a format alone, --methods and --budgets evict");
  }
  for (const std::string& method : options.methods) {
    formats.push_back(load_spec(engine, options.kv + "+" + method + kAnyBudget));
  }
  return formats;
}

Budget load_budget(const std::string& text, int32_t window) {
  const std::string given = "--budgets " + text;
  const Budget budget = parse_budget(given, text);
  if (budget.tokens == 0 || budget.tokens >= window) return budget;
  throw UsageError(given + ": smaller than the window of " + std::to_string(window) +
                   " newest tokens that are always kept");
}

/// Every window, then every needle, by each subject in turn, so that what disturbs the machine disturbs all alike.
void measure(const Engine& engine, const EvalEvictionOptions& options,
             const std::vector<std::span<const int32_t>>& windows, std::vector<EvictionQuality>& subjects) {
  const EvictionOptions& measured = options.measured;
  int64_t steps = 0;
  for (const EvictionQuality& subject : subjects) {
    steps += static_cast<int64_t>(windows.size()) * subject.window_steps() + measured.needles * subject.needle_steps();
  }
  Progress progress("eviction", steps);
  for (size_t i = 0; i < windows.size(); ++i) {
    for (size_t turn = 0; turn < subjects.size(); ++turn) {
      const size_t subject = i % 2 == 0 ? turn : subjects.size() - 1 - turn;  // nobody is always the first
      subjects[subject].add_window(windows[i], progress);
    }
  }
  if (measured.needles == 0) return;
  const std::vector<int32_t> filler =
      filler_tokens(engine, options.model, options.text, measured.context, measured.seed);
  const NeedleOptions needles{
      .context = measured.context, .samples = measured.needles, .seed = measured.seed, .chunk = measured.chunk};
  NeedlePrompts prompts(engine, filler, needles);
  for (int32_t i = 0; i < measured.needles; ++i) {
    const NeedlePrompt prompt = prompts.next();
    for (EvictionQuality& subject : subjects) subject.add_needle(prompt, progress);
  }
}

void run(EvalEvictionOptions options) {
  Engine engine = options.load();
  check(options, engine.model.config());
  const std::vector<Spec> formats = load_formats(engine, options);
  EvictionReport report;
  report.kv = options.kv;
  report.machine = machine_text(engine.context, options.compute);
  report.window = formats.back().policy.describe().eviction_window;
  for (const std::string& text : options.budgets) report.budgets.push_back(load_budget(text, report.window));

  const std::vector<int32_t> tokens = engine.tokenizer.encode(read_corpus(options.text));
  std::vector<std::span<const int32_t>> windows;
  if (options.measured.windows > 0) {
    windows = first_windows(tokens, options.measured.context, options.measured.windows);
    options.measured.windows = static_cast<int32_t>(windows.size());
  }
  std::vector<EvictionQuality> subjects;
  for (size_t i = 0; i < formats.size(); ++i) {
    report.methods.push_back(i == 0 ? "full cache" : options.methods[i - 1]);
    subjects.emplace_back(engine, formats[i], i == 0 ? std::vector<Budget>{} : report.budgets, options.measured);
  }
  measure(engine, options, windows, subjects);
  report.measured = options.measured;
  if (options.json) return print_report_json(report, subjects);
  print_report(report, subjects);
}

}  // namespace

void add_eval_eviction(Command eval) {
  Command command = eval.add_command("eviction", "Methods of eviction beside the full cache, at several budgets");
  auto options = std::make_shared<EvalEvictionOptions>();
  add_model_options(command, *options);
  command.add_option("--text", options->text, "Text file, without BOS; needles hide in it too").required();
  command.add_option("--methods", options->methods, "What to compare, separated by commas")
      .separated_by(',')
      .one_of(all_methods())
      .show_default();
  command
      .add_option("--budgets,--budget", options->budgets,
                  "Tokens that a KV head keeps of a prompt, on average, or shares of it such as 5%")
      .separated_by(',')
      .show_default();
  add_kv_option(command, options->kv, std::string("Without eviction: ") + kSpecHelp);
  EvictionOptions& measured = options->measured;
  add_context_option(command, measured.context, kMinEvictionContext,
                     "Tokens of a window, whose first half is compressed and second half is scored, and of a needle");
  command.add_option("--windows", measured.windows, "At most the first N windows; 0: no perplexity")
      .range(0, 1 << 30)
      .show_default();
  command.add_option("--needles", measured.needles, "Keys to hide, one a prompt; 0: no retrieval")
      .range(0, 1 << 20)
      .show_default();
  add_seed_option(command, measured.seed, "Start of the random numbers");
  add_chunk_option(command, measured.chunk);
  add_compute_options(command, options->compute);
  add_device_options(command, options->compute);
  add_json_flag(command, options->json);
  command.on_run([options] { run(*options); });
}

}  // namespace cli
