// Evaluations of the embedded model beside a reference: what a cache loses.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "eval_commands.h"
#include "llama/model.h"
#include "llama/tokenizer.h"
#include "program_run.h"
#include "runs.h"

namespace eval_reference_test {
namespace {

using nlohmann::json;

/// Logits of the embedded model after each of `tokens`, `[tokens][vocabulary]`.
std::vector<float> logits_with(const char* kv, llama::Model& model, std::span<const int32_t> tokens, size_t chunk) {
  const kvq::Context context = make_context();
  const kvq::Policy policy = kvq::Policy::load(context, kv);
  llama::Session session(model, context, llama::CacheFormat(policy));
  return run_in_chunks(session, tokens, chunk);
}

std::vector<double> log_softmax(std::span<const float> logits) {
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  std::vector<double> result;
  for (const float logit : logits) result.push_back(logit - std::log(sum));
  return result;
}

}  // namespace

TEST_CASE("what compression loses is what float64 finds in the logits of both caches") {
  constexpr size_t kContext = 128;
  constexpr size_t kScored = kContext - 1;
  const json result = run_json(compared({"--context", "128", "--windows", "1", "--kv", "int2"}));
  check_numbers(result,
                {"reference_perplexity", "rise_percent", "kl_mean", "kl_p999", "top1_agreement", "tokens_per_second"});
  CHECK(result["against"] == "fp16");
  CHECK(result["tokens"] == kScored);

  llama::Model model(kModel, 1);
  const auto vocabulary = static_cast<size_t>(model.config().vocab_size);
  std::vector<int32_t> tokens = llama::Tokenizer(kModel + "/tokenizer.json").encode(contents(kText).substr(0, 4000));
  tokens.resize(kContext);
  const std::vector<float> plain = logits_with("fp16", model, tokens, 32);
  const std::vector<float> coarse = logits_with("int2", model, tokens, 32);
  double sum = 0.0;
  double most = 0.0;
  double reference_nll = 0.0;
  int agreeing = 0;
  for (size_t i = 0; i < kScored; ++i) {
    const std::vector<double> p = log_softmax(std::span(plain).subspan(i * vocabulary, vocabulary));
    const std::vector<double> q = log_softmax(std::span(coarse).subspan(i * vocabulary, vocabulary));
    double kl = 0.0;
    for (size_t token = 0; token < vocabulary; ++token) kl += std::exp(p[token]) * (p[token] - q[token]);
    sum += kl;
    most = std::max(most, kl);
    reference_nll -= p[static_cast<size_t>(tokens[i + 1])];
    agreeing += std::ranges::max_element(p) - p.begin() == std::ranges::max_element(q) - q.begin() ? 1 : 0;
  }
  CHECK(sum > 0.0);
  CHECK(result["kl_mean"].get<double>() == doctest::Approx(sum / kScored).epsilon(1e-3));
  CHECK(result["kl_p999"].get<double>() == doctest::Approx(most).epsilon(1e-3));  // of fewer than 1000 tokens the most
  CHECK(result["top1_agreement"].get<double>() == doctest::Approx(static_cast<double>(agreeing) / kScored));
  const double reference = std::exp(reference_nll / kScored);
  CHECK(result["reference_perplexity"].get<double>() == doctest::Approx(reference).epsilon(1e-4));
  CHECK(result["rise_percent"].get<double>() ==
        doctest::Approx(100.0 * (result["perplexity"].get<double>() / reference - 1.0)).epsilon(1e-2));
}

TEST_CASE("less is lost with more bits, and a comparison changes nothing else") {
  const Arguments common{"--context", "256", "--windows", "2"};
  const json fp16 = run_json(perplexity(with(common, {"--kv", "fp16"})));
  double kl = 0.0;
  double agreement = 1.0;
  for (const char* kv : {"int8", "int4", "int2"}) {
    CAPTURE(kv);
    json result = run_json(compared(with(common, {"--kv", kv})));
    CHECK(result["reference_perplexity"] == fp16["perplexity"]);
    CHECK(result["kl_mean"].get<double>() > 2.0 * kl);
    CHECK(result["kl_p999"].get<double>() > result["kl_mean"].get<double>());
    CHECK(result["top1_agreement"].get<double>() <= agreement);
    kl = result["kl_mean"];
    agreement = result["top1_agreement"];
    json alone = run_json(perplexity(with(common, {"--kv", kv})));
    for (const char* name :
         {"against", "reference_perplexity", "rise_percent", "kl_mean", "kl_p999", "top1_agreement"}) {
      CHECK(!alone.contains(name));
      result.erase(name);
    }
    for (json* each : {&result, &alone}) each->erase("tokens_per_second");
    CHECK(result == alone);
  }
  CHECK(agreement < 1.0);
}

TEST_CASE("a cache is compared with itself only if that is asked for, and loses nothing") {
  const Arguments common{"--context", "128", "--windows", "1"};
  const Arguments plain = with(common, {"--kv", "fp16"});
  CHECK(!run_json(compared(plain)).contains("kl_mean"));
  CHECK(run_text(compared(plain)).find("against    nothing: --kv is fp16") != std::string::npos);
  CHECK(run_text(perplexity(common)).find("against    nothing: --against none") != std::string::npos);
  for (const char* kv : {"fp16", "int4"}) {
    const json same = run_json(compared(with(common, {"--kv", kv, "--against", kv})));
    CHECK(same["against"] == kv);
    CHECK(same["kl_mean"] == 0.0);
    CHECK(same["kl_p999"] == 0.0);
    CHECK(same["top1_agreement"] == 1.0);
    CHECK(same["rise_percent"] == 0.0);
    CHECK(same["reference_perplexity"] == same["perplexity"]);
  }
  const std::string report = run_text(compared(with(common, {"--kv", "int4"})));
  check_fits_page(report);
  CHECK(report.find("\ndivergence ") != std::string::npos);
}

TEST_CASE("the reference sees all tokens that a format evicts, and only second halves are scored") {
  const Arguments common{"--context", "256", "--windows", "2"};
  const json half = run_json(perplexity(with(common, {"--kv", "fp16", "--second-half"})));
  const json less = run_json(compared(with(common, {"--kv", "fp16+snapkv:48"})));
  CHECK(less["tokens"] == 2 * 127);
  CHECK(less["reference_perplexity"] == half["perplexity"]);
  CHECK(less["kl_mean"].get<double>() > 0.0);
  const json all = run_json(compared(with(common, {"--kv", "fp16+adasnap:128"})));  // all that the first half has
  CHECK(all["kl_mean"] == 0.0);
}

TEST_CASE("several formats in one run are what each of them is alone") {
  const Arguments common{"--context", "128", "--windows", "2"};
  const Arguments formats{"--kv", "int2", "--kv", "fp16", "--kv", "gs2"};
  const json all = run_json(compared(with(common, formats)));
  REQUIRE(all["formats"].size() == 3);
  for (size_t i = 0; i < 3; ++i) {
    json each = all["formats"][i];
    const std::string kv = formats[2 * i + 1];
    CAPTURE(kv);
    CHECK(each["kv"] == kv);
    each.erase("kv");
    json alone = run_json(compared(with(common, {"--kv", kv, "--against", "fp16"})));
    for (json* one : {&each, &alone}) one->erase("tokens_per_second");
    CHECK(each == alone);
  }
  CHECK(all["formats"][1]["kl_mean"] == 0.0);
  const std::string table = run_text(compared(with(common, formats)));
  check_fits_page(table);
  CHECK(table.find("\ngs2 ") != std::string::npos);
  CHECK(table.find("compared with fp16, perplexity ") != std::string::npos);
  CHECK(run_text(perplexity(with(common, formats))).find("compared with nothing, over ") != std::string::npos);
}

TEST_CASE("where one of several formats evicts, second halves of all are scored") {
  const Arguments common{"--context", "256", "--windows", "1"};
  const json both = run_json(compared(with(common, {"--kv", "int4", "--kv", "int4+snapkv:48"})));
  const json half = run_json(compared(with(common, {"--kv", "int4", "--second-half"})));
  CHECK(both["formats"][0]["perplexity"] == half["perplexity"]);
  CHECK(both["formats"][1]["reference_perplexity"] == half["reference_perplexity"]);
  CHECK(both["formats"][0]["second_half"] == true);
}

TEST_CASE("reports say that second halves were scored, and warn where eviction loses more than 5 %") {
  const Arguments common{"--context", "256", "--windows", "2"};
  const auto text = [&common](const Arguments& more) { return run_text(compared(with(common, more))); };
  const auto rise = [&common](const std::string& kv) {
    return run_json(compared(with(common, {"--kv", kv})))["rise_percent"].get<double>();
  };
  REQUIRE(rise("fp16+snapkv:96") < 5.0);
  REQUIRE(rise("fp16+streaming:32") > 5.0);
  const std::string little = text({"--kv", "fp16+snapkv:96"});
  CHECK(little.find("254 tokens in second halves of 2 windows of 256") != std::string::npos);
  CHECK(little.find("fp16, perplexity of the same second halves ") != std::string::npos);
  CHECK(little.find("warning") == std::string::npos);
  const std::string both = text({"--kv", "fp16+snapkv:96", "--kv", "fp16+streaming:32"});
  check_fits_page(both);
  CHECK(both.find("second halves ") != std::string::npos);
  CHECK(both.find("warning: fp16+snapkv:96") == std::string::npos);
  CHECK(both.find("warning: fp16+streaming:32 evicts too much") != std::string::npos);
  CHECK(text({"--kv", "int4"}).find("second hal") == std::string::npos);
}

TEST_CASE("references that make no sense exit with 2 and are named") {
  check_failure(compared({"--against", "int5"}), 2, "--against int5");
  check_failure(compared({"--against", "fp16+snapkv:64"}), 2, "--against fp16+snapkv:64 evicts");
  check_failure(compared({"--against", "int4+snapkv:8"}), 2, "--against int4+snapkv:8");
  check_failure(compared({"--against", "absent.yaml"}), 1, "absent.yaml");
  check_failure(compared({"--context", "2", "--second-half"}), 2, "--context 2");
  check_failure(compared({"--context", "2", "--kv", "int4+snapkv:64"}), 2, "--context 2");
}

}  // namespace eval_reference_test
