// Continuations of the embedded model, beside those with a reference.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "eval_commands.h"
#include "llama/model.h"
#include "llama/tokenizer.h"
#include "program_run.h"
#include "runs.h"
#include "support/scratch_directory.h"

namespace eval_generate_test {
namespace {

using nlohmann::json;

}  // namespace

TEST_CASE("continuations begin to differ where two runs of generate do") {
  const Arguments common{"--prompts", "3", "--prompt-tokens", "96", "--tokens", "40", "--kv", "int2"};
  const json result = run_json(generation(common));
  check_numbers(result, {"repeating", "reference_repeating", "never_differ", "kv_bits", "kv_bytes", "fp16_kv_bytes",
                         "weight_bits", "prompt_tokens", "tokens", "chunk"});
  CHECK(result["against"] == "fp16");
  REQUIRE(result["prompts"].size() == 3);

  llama::Model model(kModel, 1);
  const kvq::Context context = make_context();
  const llama::Tokenizer tokenizer(kModel + "/tokenizer.json");
  const std::vector<int32_t> text = tokenizer.encode(contents(kText));
  // Token by token, the likeliest each time.
  const auto write = [&](const char* kv, std::vector<int32_t> tokens) {
    const kvq::Policy policy = kvq::Policy::load(context, kv);
    llama::Session session(model, context, llama::CacheFormat(policy));
    std::vector<int32_t> written;
    std::vector<float> logits = run_in_chunks(session, tokens, 32);
    while (written.size() < 40) {
      const std::span<const float> last = std::span(logits).last(static_cast<size_t>(model.config().vocab_size));
      written.push_back(static_cast<int32_t>(std::ranges::max_element(last) - last.begin()));
      logits = run_in_chunks(session, std::span(written).last(1), 1);
    }
    return written;
  };
  for (size_t i = 0; i < 3; ++i) {
    const json& prompt = result["prompts"][i];
    const size_t begin = i * text.size() / 3;
    CHECK(prompt["begin"] == begin);
    CHECK(prompt["generated_tokens"] == 40);
    std::vector<int32_t> tokens;
    if (model.config().bos_token >= 0) tokens.push_back(model.config().bos_token);
    tokens.insert(tokens.end(), text.begin() + static_cast<std::ptrdiff_t>(begin),
                  text.begin() + static_cast<std::ptrdiff_t>(begin) + 96);
    const std::vector<int32_t> plain = write("fp16", tokens);
    const std::vector<int32_t> coarse = write("int2", tokens);
    json expected = nullptr;
    for (size_t at = 40; at-- > 0;) {
      if (plain[at] != coarse[at]) expected = at;
    }
    CHECK(prompt["first_difference"] == expected);
  }
}

TEST_CASE("continuations with the same cache never differ, and without a reference nothing is compared") {
  const Arguments common{"--prompts", "2", "--prompt-tokens", "64", "--tokens", "16", "--kv", "int4"};
  const json same = run_json(generation(with(common, {"--against", "int4"})));
  CHECK(same["never_differ"] == 1.0);
  CHECK(same["median_first_difference"].is_null());
  CHECK(same["repeating"] == same["reference_repeating"]);
  for (const json& prompt : same["prompts"]) CHECK(prompt["first_difference"].is_null());

  const json alone = run_json(generation(with(common, {"--against", "none"})));
  CHECK(alone["repeating"] == same["repeating"]);
  CHECK(alone["kv_bytes"] == same["kv_bytes"]);
  for (const char* name : {"against", "reference_repeating", "median_first_difference", "never_differ"}) {
    CHECK(!alone.contains(name));
  }
  CHECK(!alone["prompts"][0].contains("first_difference"));

  check_fits_page(run_text(generation(common)));
  const std::string report = run_text(generation(with(common, {"--against", "none"})));
  CHECK(report.find("against  nothing: --against none") != std::string::npos);
}

TEST_CASE("a format that evicts does so before it continues, and not the reference") {
  const Arguments common{"--prompts", "2", "--prompt-tokens", "128", "--tokens", "32"};
  const json less = run_json(generation(with(common, {"--kv", "fp16+streaming:40"})));
  const json all = run_json(generation(with(common, {"--kv", "fp16+adasnap:129"})));  // all of a prompt, BOS too
  CHECK(less["kv_bytes"].get<double>() < all["kv_bytes"].get<double>());
  CHECK(less["never_differ"].get<double>() < 1.0);
  CHECK(all["never_differ"] == 1.0);
}

TEST_CASE("a continuation that the model ends at once is empty and does not repeat") {
  const ScratchDirectory scratch;
  for (const char* name : {"model.safetensors", "tokenizer.json"}) {
    kvq_test::link_or_copy(kModel + "/" + name, scratch.path() / name);
  }
  json config = json::parse(contents(kModel + "/config.json"));
  config["eos_token_id"] = json::array();
  for (int token = 0; token < config["vocab_size"]; ++token) config["eos_token_id"].push_back(token);
  scratch.write("config.json", config.dump());
  const json result = run_json({"eval", "generate", "--model", scratch.path().string(), "--text", kText, "--prompts",
                                "2", "--prompt-tokens", "64", "--tokens", "64", "--kv", "int2"});
  CHECK(result["repeating"] == 0.0);
  CHECK(result["never_differ"] == 1.0);
  for (const json& prompt : result["prompts"]) {
    CHECK(prompt["generated_tokens"] == 0);
    CHECK(prompt["reference_generated_tokens"] == 0);
  }
}

TEST_CASE("texts and lengths that continuations cannot have are named") {
  const ScratchDirectory scratch;
  const std::string brief = scratch.write("brief.txt", "Once upon a time there was a text.").string();
  check_failure({"eval", "generate", "--model", kModel, "--text", brief}, 1, "--prompts 8 of --prompt-tokens 512");
  check_failure(generation({"--tokens", "8192"}), 2, "8192 positions");
  check_failure(generation({"--tokens", "0"}), 2, "--tokens");
  check_failure(generation({"--prompts", "0"}), 2, "--prompts");
  check_failure(generation({"--prompt-tokens", "0"}), 2, "--prompt-tokens");
  check_failure(generation({"--kv", "int5"}), 2, "--kv int5");
  check_failure(generation({"--against", "int5"}), 2, "--against int5");
  check_failure(generation({"--against", "fp16+snapkv:64"}), 2, "--against fp16+snapkv:64 evicts");
}

}  // namespace eval_generate_test
