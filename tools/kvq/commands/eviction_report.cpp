#include "commands/eviction_report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "measure/perplexity.h"
#include "terminal/optional_json.h"
#include "terminal/output.h"
#include "terminal/table.h"

namespace cli {
namespace {

using Number = std::optional<double>;

constexpr const char* kNothing = "-";

/// The figures of one row; nothing where nothing was measured.
struct Figures {
  Number perplexity;
  Number rise_percent;  // over the full cache
  Number accuracy;
  Number attention_error;
};

Figures figures_of(const EvictionOptions& measured, const BudgetQuality& row, const BudgetQuality& full) {
  Figures figures;
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

std::string text_of(const Number& number, int digits) { return number ? number_text(*number, digits) : kNothing; }

std::optional<int32_t> unless_zero(int32_t budget) { return budget > 0 ? std::optional(budget) : std::nullopt; }

/// How often the full cache's prefill fits in a subject's.
Number prefill_ratio(const EvictionQuality& subject, const EvictionQuality& full) {
  const Number seconds = subject.prefill_seconds();
  const Number of_full = full.prefill_seconds();
  return seconds && of_full ? Number(*seconds / *of_full) : std::nullopt;
}

std::string quality_table(const EvictionReport& report, const std::vector<EvictionQuality>& subjects) {
  Table table({"method", "budget", "perplexity of\nsecond halves", "rise over\nfull cache", "keys\nfound",
               "L1 error of\nattention", "KV bytes of\na prompt"});
  const BudgetQuality& full = subjects.front().rows().front();
  const int32_t needles = report.measured.needles;
  for (size_t subject = 0; subject < subjects.size(); ++subject) {
    const std::vector<BudgetQuality>& rows = subjects[subject].rows();
    for (size_t i = 0; i < rows.size(); ++i) {
      const Figures figures = figures_of(report.measured, rows[i], full);
      const std::string rise = figures.rise_percent ? signed_percent(*figures.rise_percent) : kNothing;
      const bool is_full = subject == 0;
      table.add_row({report.methods[subject], is_full ? "" : report.budgets[i].text, text_of(figures.perplexity, 4),
                     is_full ? "" : rise,
                     needles > 0 ? std::to_string(rows[i].found) + "/" + std::to_string(needles) : kNothing,
                     text_of(figures.attention_error, 4), bytes_text(kv_bytes(rows[i].usage))});
    }
  }
  return table.text();
}

/// Of budgets that are too small; empty if there is none.
std::string warnings_text(const EvictionReport& report, const std::vector<EvictionQuality>& subjects) {
  std::string text;
  const BudgetQuality& full = subjects.front().rows().front();
  for (size_t subject = 1; subject < subjects.size(); ++subject) {
    std::string budgets;
    const std::vector<BudgetQuality>& rows = subjects[subject].rows();
    for (size_t i = 0; i < rows.size(); ++i) {
      const Figures figures = figures_of(report.measured, rows[i], full);
      if (figures.rise_percent.value_or(0.0) > kMuchLost)
        budgets += (budgets.empty() ? "" : ", ") + report.budgets[i].text;
    }
    if (!budgets.empty()) {
      text += "warning: " + report.methods[subject] + " loses more than " + number_text(kMuchLost, 0) +
              " % of perplexity with a budget of " + budgets + "\n";
    }
  }
  return text;
}

std::string time_table(const EvictionReport& report, const std::vector<EvictionQuality>& subjects) {
  Table table({"method", "prefill\nseconds", "times\nfull cache", "compress\nseconds", "of its\nprefill"});
  for (size_t i = 0; i < subjects.size(); ++i) {
    const Number prefill = subjects[i].prefill_seconds();
    const Number compress = subjects[i].compress_seconds();
    table.add_row({report.methods[i], text_of(prefill, 3), text_of(prefill_ratio(subjects[i], subjects.front()), 3),
                   text_of(compress, 4),
                   prefill && compress ? number_text(100.0 * *compress / *prefill, 2) + " %" : kNothing});
  }
  return table.text();
}

nlohmann::ordered_json row_json(const EvictionReport& report, const std::string& method, const Budget* budget,
                                const BudgetQuality& row, const BudgetQuality& full) {
  const Figures figures = figures_of(report.measured, row, full);
  const bool share = budget != nullptr && budget->tokens == 0;
  nlohmann::ordered_json object;
  object["method"] = method;
  object["budget"] = json_of(unless_zero(row.budget));
  object["needle_budget"] = json_of(unless_zero(row.needle_budget));
  object["budget_percent"] = json_of(share ? Number(budget->percent) : std::nullopt);
  object["perplexity"] = json_of(figures.perplexity);
  object["rise_percent"] = json_of(figures.rise_percent);
  object["accuracy"] = json_of(figures.accuracy);
  object["attention_error"] = json_of(figures.attention_error);
  add_usage(object, row.usage);
  return object;
}

}  // namespace

void print_report(const EvictionReport& report, const std::vector<EvictionQuality>& subjects) {
  const EvictionOptions& measured = report.measured;
  const std::string context = std::to_string(measured.context);
  std::string text = quality_table(report, subjects) + "\n";
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
    text += warnings_text(report, subjects) + "\n" + time_table(report, subjects) + "\nMedians over windows on " +
            report.machine +
            "; compressing to the first budget.\nWhat a method takes to watch queries is part of its prefill.\n";
  }
  print_text(text);
}

void print_report_json(const EvictionReport& report, const std::vector<EvictionQuality>& subjects) {
  nlohmann::ordered_json object;
  object["rows"] = nlohmann::ordered_json::array();
  object["methods"] = nlohmann::ordered_json::array();
  const BudgetQuality& full = subjects.front().rows().front();
  for (size_t i = 0; i < subjects.size(); ++i) {
    const std::string method = i == 0 ? "full" : report.methods[i];
    const std::vector<BudgetQuality>& rows = subjects[i].rows();
    for (size_t row = 0; row < rows.size(); ++row) {
      object["rows"].push_back(row_json(report, method, i == 0 ? nullptr : &report.budgets[row], rows[row], full));
    }
    object["methods"].push_back({{"method", method},
                                 {"prefill_seconds", json_of(subjects[i].prefill_seconds())},
                                 {"prefill_ratio", json_of(prefill_ratio(subjects[i], subjects.front()))},
                                 {"compress_seconds", json_of(subjects[i].compress_seconds())}});
  }
  object["kv"] = report.kv;
  object["window"] = report.window;
  object["context"] = report.measured.context;
  object["windows"] = report.measured.windows;
  object["needles"] = report.measured.needles;
  object["seed"] = report.measured.seed;
  object["chunk"] = report.measured.chunk;
  print_json(object);
}

}  // namespace cli
