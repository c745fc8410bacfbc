// Evaluations of the embedded model by the program.
#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "eval_commands.h"
#include "program_run.h"
#include "support/scratch_directory.h"

namespace eval_test {
namespace {

using nlohmann::json;

}  // namespace

TEST_CASE("perplexity reports true sizes, and int4 costs little") {
  const Arguments common{"--context", "256", "--windows", "2", "--per-window"};
  const json fp16 = run_json(perplexity(with(common, {"--kv", "fp16"})));
  const json int4 = run_json(perplexity(with(common, {"--kv", "int4", "--threads", "1"})));
  for (const json* result : {&fp16, &int4}) {
    check_numbers(*result,
                  {"perplexity", "tokens", "kv_bits", "kv_bytes", "fp16_kv_bytes", "weight_bits", "tokens_per_second"});
    CHECK((*result)["tokens"] == 2 * 255);
    CHECK((*result)["weight_bits"] == 16.0);
    // 6 layers, keys and values, 2 heads of 128, 256 tokens, 2 bytes
    CHECK((*result)["fp16_kv_bytes"] == 6 * 2 * 2 * 128 * 256 * 2);
    const double scalars = (*result)["fp16_kv_bytes"].get<double>() / 2.0;
    CHECK((*result)["kv_bits"].get<double>() ==
          doctest::Approx(8.0 * (*result)["kv_bytes"].get<double>() / scalars).epsilon(1e-9));
    const auto losses = (*result)["window_mean_nll"].get<std::vector<double>>();
    REQUIRE(losses.size() == 2);
    CHECK((*result)["perplexity"].get<double>() ==
          doctest::Approx(std::exp((losses[0] + losses[1]) / 2)).epsilon(1e-9));
  }
  CHECK(fp16["kv_bits"].get<double>() >= 16.0);
  CHECK(int4["kv_bits"].get<double>() < 8.0);
  const double rise = int4["perplexity"].get<double>() / fp16["perplexity"].get<double>();
  CHECK(rise != 1.0);
  CHECK(std::abs(rise - 1.0) < 0.02);
}

TEST_CASE("a format that evicts does so once, after the prompt, and what follows is scored") {
  const Arguments common{"--context", "256", "--windows", "2", "--per-window"};
  const auto measure = [&common](const Arguments& more) { return run_json(perplexity(with(common, more))); };
  const json whole = measure({"--kv", "fp16"});
  const json half = measure({"--kv", "fp16", "--second-half"});
  const json same = measure({"--second-half", "--kv", "fp16+adasnap:128"});  // all that the first half has
  const json less = measure({"--kv", "fp16+snapkv:48"});
  CHECK(half["tokens"] == 2 * 127);
  CHECK(less["tokens"] == half["tokens"]);
  CHECK(half["perplexity"] != whole["perplexity"]);
  CHECK(same["perplexity"] == half["perplexity"]);
  CHECK(less["perplexity"].get<double>() > half["perplexity"].get<double>());
  CHECK(less["perplexity"].get<double>() < 1.5 * half["perplexity"].get<double>());
  CHECK(less["kv_bytes"].get<double>() < half["kv_bytes"].get<double>());

  const Arguments common_needle{"--context", "384", "--samples", "3", "--kv"};
  const auto accuracy = [&common_needle](const Arguments& more) {
    return run_json(needle(with(common_needle, more)))["accuracy"].get<double>();
  };
  CHECK(accuracy({"int4+adasnap:192"}) > accuracy({"int4+streaming:64"}));
  CHECK(accuracy({"fp16+snapkv:384", "--compress-before-question"}) == 1.0);
  check_failure({"generate", "--model", kModel, "--prompt", "a", "--kv", "int4+snapkv:8"}, 2, "window");
}

TEST_CASE("a prompt's half is recoded to a smaller format, and what follows is scored") {
  const Arguments common{"--context", "256", "--windows", "2", "--kv"};
  const auto measure = [&common](const Arguments& more) { return run_json(perplexity(with(common, more))); };
  const json gs2 = measure({"gs2@none", "--second-half"});
  const json same = measure({"gs2@none", "--recode-from", "gs2@none"});
  const json recoded = measure({"gs2@none", "--recode-from", "gs4@none"});
  CHECK(same["perplexity"] == gs2["perplexity"]);
  CHECK(recoded["recode_from"] == "gs4@none");
  CHECK(recoded["tokens"] == 2 * 127);
  CHECK(recoded["kv_bytes"] == gs2["kv_bytes"]);
  CHECK(recoded["perplexity"] != gs2["perplexity"]);
  CHECK(recoded["perplexity"].get<double>() < 1.1 * gs2["perplexity"].get<double>());
  check_failure(perplexity(with(common, {"gs2", "--recode-from", "gs4+snapkv:64"})), 2, "--recode-from");
}

TEST_CASE("errors of stored keys and values grow as bits go, and are none in FP16") {
  std::vector<json> results;
  for (const char* kv : {"fp16", "int8", "int4", "int2"}) {
    results.push_back(run_json(
        {"eval", "error", "--model", kModel, "--text", kText, "--kv", kv, "--context", "128", "--windows", "1"}));
  }
  CHECK(results[0]["key_error"] == 0.0);
  CHECK(results[0]["value_error"] == 0.0);
  CHECK(results[0]["layers"].size() == 6);
  for (const char* side : {"key_error", "value_error"}) {
    for (size_t i = 1; i < results.size(); ++i) {
      CHECK(results[i][side].get<double>() > 10.0 * results[i - 1][side].get<double>());
      CHECK(results[i][side].get<double>() < 0.3);
    }
  }
}

TEST_CASE("a policy file means what its short form means") {
  const ScratchDirectory scratch;
  const std::string file = scratch.write("policy.yaml", "version: 1\nkeys: int3\nvalues: int3\n").string();
  const Arguments common{"--context", "128", "--windows", "1", "--kv"};
  const json from_file = run_json(perplexity(with(common, {file})));
  const json from_name = run_json(perplexity(with(common, {"int3"})));
  CHECK(from_file["perplexity"] == from_name["perplexity"]);
  CHECK(from_file["kv_bytes"] == from_name["kv_bytes"]);
}

TEST_CASE("the needle is found at full precision, with and without prose to hide it in") {
  const ScratchDirectory scratch;
  const json prose = run_json(needle({"--context", "256", "--samples", "3"}));
  check_numbers(prose, {"accuracy", "samples", "kv_bits", "kv_bytes"});
  CHECK(prose["accuracy"] == 1.0);
  CHECK(prose["samples"] == 3);
  for (const char* name : {"config.json", "model.safetensors", "tokenizer.json"}) {
    kvq_test::link_or_copy(kModel + "/" + name, scratch.path() / name);
  }
  const json made_up = run_json(
      {"eval", "needle", "--model", scratch.path().string(), "--context", "256", "--samples", "3", "--kv", "int8"});
  CHECK(made_up["accuracy"] == 1.0);
}

}  // namespace eval_test
