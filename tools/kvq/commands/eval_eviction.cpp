#include <algorithm>
#include <cmath>

#include "commands/commands.h"
#include "measure/eviction_quality.h"
#include "measure/needle.h"
#include "measure/perplexity.h"
#include "terminal/files.h"

namespace cli {
namespace {

struct EvictionReport {
  std::string kv;
  std::string machine;
  EvictionOptions measured;
  int32_t window = 0;  // newest tokens that always stay
  std::vector<Budget> budgets;
  std::vector<std::string> methods;  // of the subjects, the first of which evicts nothing
};

using Number = std::optional<double>;

constexpr const char* kNothing = "-";

/// The figures of one row; nothing where nothing was measured.
struct RowFigures {
  Number perplexity;
  Number rise_percent;  // over the full cache
  Number accuracy;
  Number attention_error;
};

RowFigures figures_of(const EvictionOptions& measured, const BudgetQuality& row, const BudgetQuality& full) {
  RowFigures figures;
  if (measured.windows > 0) {
    const auto context = static_cast<size_t>(measured.context);
    const double scored = measured.windows * static_cast<double>(context - 1 - half_of(context));
    figures.perplexity = std::exp(row.nll / scored);
    figures.rise_percent = 100.0 * (std::exp((row.nll - full.nll) / scored) - 1.0);
    figures.attention_error = row.attention_error / measured.windows;
  }
  if (measured.needles > 0) figures.accuracy = static_cast<double>(row.found) / measured.needles;
  return figures;
}

void add(Figures& figures, const char* heading, const char* field, const Number& number, int digits) {
  figures.add(heading, field, json_of(number), number ? number_text(*number, digits) : kNothing);
}

std::optional<int32_t> unless_zero(int32_t budget) { return budget > 0 ? std::optional(budget) : std::nullopt; }

/// How often the full cache's prefill fits in a subject's.
Number prefill_ratio(const EvictionQuality& subject, const EvictionQuality& full) {
  const Number seconds = subject.prefill_seconds();
  const Number of_full = full.prefill_seconds();
  return seconds && of_full ? Number(*seconds / *of_full) : std::nullopt;
}

Figures quality_figures(const EvictionReport& report, const std::vector<EvictionQuality>& subjects) {
  Figures table;
  const BudgetQuality& full = subjects.front().rows().front();
  const int32_t needles = report.measured.needles;
  for (size_t subject = 0; subject < subjects.size(); ++subject) {
    const std::vector<BudgetQuality>& rows = subjects[subject].rows();
    for (size_t i = 0; i < rows.size(); ++i) {
      const BudgetQuality& row = rows[i];
      const RowFigures figures = figures_of(report.measured, row, full);
      const std::string rise = figures.rise_percent ? signed_percent(*figures.rise_percent) : kNothing;
      const std::string found = std::to_string(row.found) + "/" + std::to_string(needles);
      const Budget* budget = subject == 0 ? nullptr : &report.budgets[i];  // nothing is evicted without
      const bool is_share = budget != nullptr && budget->tokens == 0;
      table.begin_row();
      table.add("method", "method", subject == 0 ? "full" : report.methods[subject], report.methods[subject]);
      table.add("budget", "budget", json_of(unless_zero(row.budget)), budget == nullptr ? "" : budget->text);
      table.add("", "needle_budget", json_of(unless_zero(row.needle_budget)), "");
      table.add("", "budget_percent", json_of(is_share ? Number(budget->percent) : std::nullopt), "");
      add(table, "perplexity of\nsecond halves", "perplexity", figures.perplexity, 4);
      table.add("rise over\nfull cache", "rise_percent", json_of(figures.rise_percent), budget == nullptr ? "" : rise);
      table.add("keys\nfound", "accuracy", json_of(figures.accuracy), needles > 0 ? found : kNothing);
      add(table, "L1 error of\nattention", "attention_error", figures.attention_error, 4);
      table.add("KV bytes of\na prompt", "kv_bits", row.usage.bits_per_scalar, bytes_text(kv_bytes(row.usage)));
      table.add("", "kv_bytes", kv_bytes(row.usage), "");
      table.add("", "fp16_kv_bytes", row.usage.plain_fp16_bytes, "");
    }
  }
  return table;
}

std::string warnings_text(const EvictionReport& report, const std::vector<EvictionQuality>& subjects) {
  std::string text;
  const BudgetQuality& full = subjects.front().rows().front();
  for (size_t subject = 1; subject < subjects.size(); ++subject) {
    std::vector<std::string> budgets;
    const std::vector<BudgetQuality>& rows = subjects[subject].rows();
    for (size_t i = 0; i < rows.size(); ++i) {
      const RowFigures figures = figures_of(report.measured, rows[i], full);
      if (figures.rise_percent.value_or(0.0) > kMuchLost) budgets.push_back(report.budgets[i].text);
    }
    if (!budgets.empty()) {
      text += "warning: " + report.methods[subject] + " loses more than " + number_text(kMuchLost, 0) +
              " % of perplexity with a budget of " + joined(budgets) + "\n";
    }
  }
  return text;
}

Figures time_figures(const EvictionReport& report, const std::vector<EvictionQuality>& subjects) {
  Figures table;
  for (size_t i = 0; i < subjects.size(); ++i) {
    const Number prefill = subjects[i].prefill_seconds();
    const Number compress = subjects[i].compress_seconds();
    table.begin_row();
    table.add("method", "method", i == 0 ? "full" : report.methods[i], report.methods[i]);
    add(table, "prefill\nseconds", "prefill_seconds", prefill, 3);
    add(table, "times\nfull cache", "prefill_ratio", prefill_ratio(subjects[i], subjects.front()), 3);
    add(table, "compress\nseconds", "compress_seconds", compress, 4);
    table.add("of its\nprefill", "", {},
              prefill && compress ? number_text(100.0 * *compress / *prefill, 2) + " %" : kNothing);
  }
  return table;
}

void print_report(const EvictionReport& report, const std::vector<EvictionQuality>& subjects) {
  const EvictionOptions& measured = report.measured;
  const std::string context = std::to_string(measured.context);
  std::string text = quality_figures(report, subjects).table() + "\n";
  text += "--kv " + report.kv + "; budget: tokens that a KV head keeps of a prompt, on average, the newest " +
          std::to_string(report.window) + " always.\n";
  if (measured.windows > 0) {
    text += "Perplexity of the second half of " + std::to_string(measured.windows) + " x " + context +
            " tokens once the first half is compressed; L1 error: of\n" +
            "what attention gives the 32 tokens after it, relative, over heads, layers and tokens.\n";
    text += "The full cache's perplexity is that of the same second halves.\n";
  }
  if (measured.needles > 0) {
    text += "Keys: five digits hidden in " + context + " tokens, compressed with the question at their end.\n";
  }
  if (measured.windows > 0) {
    text += warnings_text(report, subjects) + "\n" + time_figures(report, subjects).table() +
            "\nMedians over windows on " + report.machine +
            "; compressing to the first budget.\nWhat a method takes to watch queries is part of its prefill.\n";
  }
  print_text(text);
}

void print_report_json(const EvictionReport& report, const std::vector<EvictionQuality>& subjects) {
  print_json({{"rows", quality_figures(report, subjects).objects()},
              {"methods", time_figures(report, subjects).objects()},
              {"kv", report.kv},
              {"window", report.window},
              {"context", report.measured.context},
              {"windows", report.measured.windows},
              {"needles", report.measured.needles},
              {"seed", report.measured.seed},
              {"chunk", report.measured.chunk}});
}

constexpr int32_t kMinEvictionContext = 64;
constexpr const char* kAnyBudget = ":100%";  // every compression names one of its own

struct EvalEvictionOptions : ModelOptions {
  std::string text;
  std::vector<std::string> methods = eviction_methods();
  std::vector<std::string> budgets{"64", "128", "256", "512"};
  EvictionOptions measured;
};

void check(const EvalEvictionOptions& options, const llama::ModelConfig& config) {
  check_context(options.measured.context, config);
  if (options.measured.windows == 0 && options.measured.needles == 0) {
    throw UsageError("--windows 0 and --needles 0 leave nothing to measure");
  }
}

std::vector<Spec> load_formats(const Engine& engine, const EvalEvictionOptions& options) {
  std::vector<Spec> formats;
  formats.push_back(load_judged_spec(engine, options.kv));
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
void measure(const Engine& engine, const EvalEvictionOptions& options, const std::vector<llama::Tokens>& windows,
             std::vector<EvictionQuality>& subjects) {
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
      filler_tokens(engine, llama::path_of(options.model), options.text, measured.context, measured.seed);
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

  const std::vector<int32_t> tokens = engine.tokenizer.encode(read_corpus(llama::path_of(options.text)));
  std::vector<llama::Tokens> windows;
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
      .one_of(eviction_methods())
      .show_default();
  command
      .add_option("--budgets", options->budgets,
                  "Tokens that a KV head keeps of a prompt, on average, or shares of it such as 5%")
      .separated_by(',')
      .show_default();
  add_kv_option(command, options->kv, "Without eviction: " + spec_help());
  EvictionOptions& measured = options->measured;
  add_context_option(command, measured.context, kMinEvictionContext,
                     "Tokens of a window, whose first half is compressed and second half is scored, and of a needle");
  command.add_number("--windows", measured.windows, 0, 1 << 30, "At most the first N windows; 0: no perplexity");
  command.add_number("--needles", measured.needles, 0, 1 << 20, "Keys to hide, one a prompt; 0: no retrieval");
  add_seed_option(command, measured.seed, "Start of the random numbers");
  add_chunk_option(command, measured.chunk);
  add_run_options(command, options->compute, options->json);
  command.on_run([options] { run(*options); });
}

}  // namespace cli
