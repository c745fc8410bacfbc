// kvq eval eviction: the same figures as one evaluation for each budget, and what follows from what budgets mean.
#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "eval_commands.h"
#include "llama/tokenizer.h"
#include "program_run.h"
#include "prompt_attention.h"
#include "runs.h"
#include "support/scratch_directory.h"

namespace eval_eviction_test {
namespace {

using nlohmann::json;

/// The rows of a method.
std::vector<json> rows_of(const json& result, const std::string& method) {
  std::vector<json> rows;
  for (const json& row : result["rows"]) {
    if (row["method"] == method) rows.push_back(row);
  }
  return rows;
}

/// One head of `heads` of every token, [tokens][head_dim], rotated by positions if they are keys.
Doubles head_of(const llama::ModelConfig& config, const std::vector<float>& rows, int32_t heads, int32_t head,
                bool keys) {
  const auto dim = static_cast<size_t>(config.head_dim);
  Doubles result;
  int32_t position = 0;
  for (size_t at = static_cast<size_t>(head) * dim; at < rows.size(); at += static_cast<size_t>(heads) * dim) {
    const Doubles row(rows.begin() + static_cast<ptrdiff_t>(at), rows.begin() + static_cast<ptrdiff_t>(at + dim));
    const Doubles stored = keys ? rotated(config, row, position) : row;
    result.insert(result.end(), stored.begin(), stored.end());
    ++position;
  }
  return result;
}

/// What attention gives if it sees only some tokens.
Doubles attended(const Doubles& q, const Doubles& keys, const Doubles& values, const std::vector<int32_t>& seen) {
  const Doubles weights = attention_weights(q, keys, seen);
  Doubles out(q.size(), 0.0);
  for (size_t i = 0; i < seen.size(); ++i) {
    for (size_t c = 0; c < q.size(); ++c) out[c] += weights[i] * values[static_cast<size_t>(seen[i]) * q.size() + c];
  }
  return out;
}

/// ‖o − o_full‖₁ / ‖o_full‖₁ of one query if of the prompt only 4 first tokens and the newest are left.
double streaming_error(const llama::ModelConfig& config, const PromptTensors& layer, int32_t head, int32_t position,
                       int32_t prompt, int32_t budget) {
  const int32_t kv_head = head / (config.q_heads / config.kv_heads);
  const Doubles keys = head_of(config, layer.k, config.kv_heads, kv_head, true);
  const Doubles values = head_of(config, layer.v, config.kv_heads, kv_head, false);
  const Doubles queries = head_of(config, layer.q, config.q_heads, head, true);
  const auto begin = queries.begin() + ptrdiff_t{position} * config.head_dim;
  const Doubles q(begin, begin + config.head_dim);
  std::vector<int32_t> all(static_cast<size_t>(position) + 1);
  std::iota(all.begin(), all.end(), 0);
  std::vector<int32_t> left = all;
  std::erase_if(left, [&](int32_t token) { return token >= 4 && token < prompt - (budget - 4); });
  const Doubles full = attended(q, keys, values, all);
  const Doubles o = attended(q, keys, values, left);
  double error = 0.0;
  double norm = 0.0;
  for (size_t c = 0; c < o.size(); ++c) {
    error += std::abs(o[c] - full[c]);
    norm += std::abs(full[c]);
  }
  return error / norm;
}

}  // namespace

TEST_CASE("budgets that share a prefill get the figures that each has by itself") {
  const json texts = run_json(eviction({"--context", "160", "--windows", "2", "--needles", "0", "--chunk", "32",
                                        "--methods", "snapkv,adapyramid", "--budgets", "48,64"}));
  REQUIRE(texts["rows"].size() == 5);
  CHECK(texts["windows"] == 2);
  const Arguments common{"--context", "160", "--windows", "2", "--kv"};
  const auto alone = [&common](const std::string& kv) {
    return run_json(perplexity(with(common, {kv, "--second-half"})))["perplexity"].get<double>();
  };
  const double full = alone("fp16");
  CHECK(rows_of(texts, "full").at(0)["perplexity"] == full);
  CHECK(rows_of(texts, "full").at(0)["budget"].is_null());
  for (const std::string method : {"snapkv", "adapyramid"}) {
    const std::vector<json> rows = rows_of(texts, method);
    REQUIRE(rows.size() == 2);
    CHECK(rows[0]["budget"] == 48);
    CHECK(rows[1]["budget"] == 64);
    for (const json& row : rows) {
      const double expected = alone("fp16+" + method + ":" + std::to_string(row["budget"].get<int>()));
      CHECK(row["perplexity"] == expected);
      CHECK(row["rise_percent"].get<double>() == doctest::Approx(100.0 * (expected / full - 1.0)));
      CHECK(row["accuracy"].is_null());
      CHECK(row["needle_budget"].is_null());
    }
  }

  const json needles = run_json(eviction({"--context", "256", "--windows", "0", "--needles", "3", "--chunk", "32",
                                          "--kv", "int4", "--methods", "streaming,adasnap", "--budgets", "64,192"}));
  const auto accuracy = [](const std::string& kv) {
    return run_json(needle({"--text", kText, "--context", "256", "--samples", "3", "--kv", kv}))["accuracy"];
  };
  CHECK(rows_of(needles, "full").at(0)["accuracy"] == accuracy("int4"));
  CHECK(rows_of(needles, "streaming").at(0)["accuracy"] == accuracy("int4+streaming:64"));
  CHECK(rows_of(needles, "adasnap").at(1)["accuracy"] == accuracy("int4+adasnap:192"));
  CHECK(rows_of(needles, "adasnap").at(1)["perplexity"].is_null());
  CHECK(rows_of(needles, "adasnap").at(1)["attention_error"].is_null());
}

TEST_CASE("the more of a prompt stays, the more bytes and the less error, down to none when all stays") {
  const json result = run_json(
      eviction({"--context", "512", "--windows", "1", "--needles", "0", "--budgets", "32,64,25%,128,1%,100%"}));
  REQUIRE(result["rows"].size() == 1 + 6 * 6);
  const json full = rows_of(result, "full").at(0);
  CHECK(full["attention_error"] == 0.0);
  CHECK(full["rise_percent"] == 0.0);
  CHECK(full["kv_bits"].get<double>() >= 16.0);
  for (const std::string method : {"streaming", "h2o", "snapkv", "pyramid", "adasnap", "adapyramid"}) {
    CAPTURE(method);
    const std::vector<json> rows = rows_of(result, method);
    REQUIRE(rows.size() == 6);
    const auto error = [&rows](size_t i) { return rows[i]["attention_error"].get<double>(); };
    CHECK(error(0) > error(1));
    CHECK(error(1) > error(3));
    CHECK(error(3) > 0.0);
    CHECK(rows[0]["kv_bytes"] < rows[1]["kv_bytes"]);
    CHECK(rows[1]["kv_bytes"] < rows[3]["kv_bytes"]);
    CHECK(rows[3]["kv_bytes"] < full["kv_bytes"]);
    // 2 of keys and values, 6 layers, 2 heads of 128, 2 bytes
    CHECK(rows[1]["fp16_kv_bytes"] == 2 * 6 * 2 * 128 * 64 * 2);
    // A quarter of 256 tokens, 1 % of them raised to the window, all of them.
    CHECK(rows[2]["budget"] == 64);
    CHECK(rows[2]["budget_percent"] == 25.0);
    CHECK(rows[1]["budget_percent"].is_null());
    CHECK(rows[2]["perplexity"] == rows[1]["perplexity"]);
    CHECK(rows[2]["attention_error"] == rows[1]["attention_error"]);
    CHECK(rows[4]["budget"] == 32);
    CHECK(rows[4]["perplexity"] == rows[0]["perplexity"]);
    CHECK(rows[5]["budget"] == 256);
    CHECK(rows[5]["perplexity"] == full["perplexity"]);
    CHECK(rows[5]["attention_error"] == 0.0);
  }
  REQUIRE(result["methods"].size() == 7);
  for (const json& method : result["methods"]) {
    check_numbers(method, {"prefill_seconds", "prefill_ratio"});
    CHECK(method["prefill_seconds"].get<double>() > 0.0);
    if (method["method"] == "full") {
      CHECK(method["prefill_ratio"] == 1.0);
      CHECK(method["compress_seconds"].is_null());
    } else {
      CHECK(method["compress_seconds"].get<double>() > 0.0);
    }
  }
}

TEST_CASE("the error of attention is what float64 finds without the tokens that streaming evicts") {
  constexpr int32_t kPrompt = 128;
  constexpr int32_t kQueries = 32;
  constexpr int32_t kBudget = 48;
  const json result = run_json(eviction({"--context", "256", "--windows", "1", "--needles", "0", "--methods",
                                         "streaming", "--budgets", std::to_string(kBudget)}));
  const kvq::Context context = make_context();
  llama::Model model(kModel, 1);
  const llama::ModelConfig& config = model.config();
  std::vector<int32_t> tokens = llama::Tokenizer(kModel + "/tokenizer.json").encode(contents(kText).substr(0, 4000));
  tokens.resize(kPrompt + kQueries);
  double sum = 0.0;
  int32_t count = 0;
  for (const PromptTensors& layer : observe(model, context, tokens)) {
    for (int32_t head = 0; head < config.q_heads; ++head) {
      for (int32_t position = kPrompt; position < kPrompt + kQueries; ++position, ++count) {
        sum += streaming_error(config, layer, head, position, kPrompt, kBudget);
      }
    }
  }
  const double reported = rows_of(result, "streaming").at(0)["attention_error"].get<double>();
  CHECK(reported > 0.1);
  CHECK(reported == doctest::Approx(sum / count).epsilon(2e-3));  // keys and values are stored in FP16
}

TEST_CASE("methods are added to a policy file as to a short form") {
  const ScratchDirectory scratch;
  const std::string lines = scratch.write("lines.yaml", "# int4\nkeys: int4\nvalues: int4").string();
  const std::string braces =
      scratch.write("braces.yaml", "\n{version: 1, keys: int4, values: int4}  # int4\n").string();
  const std::string word = scratch.write("word.yaml", "# a format\nint4\n").string();
  const auto rows = [](const std::string& kv) {
    return run_json(eviction({"--context", "128", "--windows", "1", "--needles", "0", "--methods", "snapkv",
                              "--budgets", "40", "--kv", kv}))["rows"];
  };
  const json expected = rows("int4");
  CHECK(expected[1]["attention_error"].get<double>() > 0.0);
  CHECK(rows(lines) == expected);
  CHECK(rows(braces) == expected);
  CHECK(rows(word) == expected);
}

TEST_CASE("the report is two tables that fit a page") {
  const std::string report =
      run_text(eviction({"--context", "128", "--windows", "1", "--needles", "1", "--budgets", "50%"}));
  check_fits_page(report);
  for (const char* method : {"\nfull cache ", "\nstreaming ", "\nadapyramid "}) {
    const size_t first = report.find(method);
    REQUIRE(first != std::string::npos);
    CHECK(report.find(method, first + 1) != std::string::npos);
  }
  CHECK(report.find("second halves") != std::string::npos);
  const std::string little = run_text(eviction(
      {"--context", "256", "--windows", "2", "--needles", "0", "--methods", "streaming", "--budgets", "32,100%"}));
  CHECK(little.find("warning: streaming loses more than 5 % of perplexity with a budget of 32\n") != std::string::npos);
}

TEST_CASE("evictions that make no sense exit with 2 and are named") {
  check_failure(eviction({"--methods", "snapkv,lru"}), 2, "--methods: lru");
  check_failure(eviction({"--budgets", "128,16"}), 2, "--budgets 16: smaller than the window of 32");
  check_failure(eviction({"--budgets", "0"}), 2, "--budgets 0:");
  check_failure(eviction({"--budgets", "0%"}), 2, "--budgets 0%:");
  check_failure(eviction({"--budgets", "10%,101%"}), 2, "--budgets 101%:");
  check_failure(eviction({"--budgets", "nan%"}), 2, "--budgets nan%:");
  check_failure(eviction({"--budgets", "many"}), 2, "--budgets many:");
  check_failure(eviction({"--budgets", "99999999999"}), 2, "--budgets 99999999999:");
  check_failure(eviction({"--kv", "int4+snapkv:64"}), 2, "--kv int4+snapkv:64 evicts already");
  check_failure(eviction({"--kv", "int5"}), 2, "--kv int5");
  check_failure(eviction({"--windows", "0", "--needles", "0"}), 2, "nothing to measure");
  check_failure(eviction({"--context", "8193"}), 2, "8192 positions");
  check_failure(eviction({"--context", "63"}), 2, "--context");
  check_failure(eviction({"--windows", "-1"}), 2, "--windows");
  check_failure({"eval", "eviction", "--model", kModel}, 2, "--text");
}

}  // namespace eval_eviction_test
