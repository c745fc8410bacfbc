#include "llama/model.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "llama/cpu_device.h"
#include "llama/error.h"
#include "llama/sampler.h"
#include "llama/tokenizer.h"
#include "runs.h"
#include "support/places.h"
#include "tiny_model.h"

namespace model_test {
namespace {

using doctest::Contains;

double largest_difference(const std::vector<float>& a, const std::vector<std::vector<double>>& b) {
  double largest = 0.0;
  size_t i = 0;
  for (const std::vector<double>& row : b) {
    for (const double value : row) largest = std::max(largest, std::abs(static_cast<double>(a.at(i++)) - value));
  }
  return largest;
}

// Keys and values are rounded to FP16, the rest is float32: far below what a wrong norm, bias or window changes.
constexpr double kTolerance = 5e-3;

nlohmann::json read_reference() {
  std::ifstream file(demo_model() + "/reference.json");
  return nlohmann::json::parse(file);
}

std::string read_test_text(const std::string& name) {
  std::ifstream file(source_tree() + "/../shared/data/" + name, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

TEST_CASE("every layout computes the logits that its definition gives in float64") {
  const kvq::Context context = make_context();
  const std::vector<int32_t> tokens = random_tokens(kTokens, TinyModel::kVocabulary);
  for (const TinyLayout& layout : tiny_layouts()) {
    CAPTURE(layout.name);
    const ScratchDirectory directory;
    const TinyModel tiny(layout);
    tiny.write(directory);
    const std::vector<std::vector<double>> expected = tiny.logits(tokens);
    llama::Model model(directory.path(), 2);
    for (const size_t chunk : {size_t{1}, size_t{32}, kTokens}) {
      CAPTURE(chunk);
      llama::Session session(model, context, nullptr);
      CHECK(largest_difference(run_in_chunks(session, tokens, chunk), expected) < kTolerance);
    }
  }
}

TEST_CASE("the layouts differ by far more than the tolerance they are compared with") {
  const std::vector<int32_t> tokens = random_tokens(kTokens, TinyModel::kVocabulary);
  const std::vector<double> plain = TinyModel(tiny_layouts()[0]).logits(tokens).back();
  for (size_t i = 1; i < tiny_layouts().size(); ++i) {
    CAPTURE(tiny_layouts()[i].name);
    const std::vector<double> other = TinyModel(tiny_layouts()[i]).logits(tokens).back();
    double largest = 0.0;
    for (size_t j = 0; j < plain.size(); ++j) largest = std::max(largest, std::abs(plain[j] - other[j]));
    CHECK(largest > 20.0 * kTolerance);
  }
}

TEST_CASE("the number of threads changes no bit of the logits") {
  const ScratchDirectory directory;
  TinyModel(tiny_layouts()[0]).write(directory);
  const std::vector<int32_t> tokens = random_tokens(kTokens, TinyModel::kVocabulary);
  std::vector<std::vector<float>> results;
  for (const int32_t threads : {1, 2, 5}) {
    llama::Model model(directory.path(), threads);
    auto options = kvq::initialised<kvq_context_options>();
    options.parallel_for = llama::ThreadPool::parallel_for_hook;
    options.parallel_for_user = &model.threads();
    const kvq::Context context(options);
    llama::Session session(model, context, nullptr);
    results.push_back(run_in_chunks(session, tokens, 32));
  }
  CHECK(results[0] == results[1]);
  CHECK(results[0] == results[2]);
}

TEST_CASE("a fork and a truncated session continue as a fresh one would") {
  const ScratchDirectory directory;
  TinyModel(tiny_layouts()[0]).write(directory);
  const kvq::Context context = make_context();
  llama::Model model(directory.path(), 1);
  const std::vector<int32_t> tokens = random_tokens(kTokens, TinyModel::kVocabulary);
  const std::span<const int32_t> all(tokens);
  llama::Session session(model, context, nullptr);
  const std::vector<float> expected = run_in_chunks(session, all, 1);
  const std::vector<float> last(expected.end() - TinyModel::kVocabulary, expected.end());

  session.truncate(70);
  llama::Session fork = session.fork();
  REQUIRE(fork.length() == 70);
  session.forward(random_tokens(9, TinyModel::kVocabulary), false);
  const std::vector<float> continued = run_in_chunks(fork, all.subspan(70), 1);
  CHECK(std::equal(last.begin(), last.end(), continued.end() - TinyModel::kVocabulary));

  session.clear();
  CHECK(session.length() == 0);
  CHECK(session.usage().scalars == 0);
  CHECK(run_in_chunks(session, all, 1) == expected);
}

TEST_CASE("only the last logits are computed when only they are asked for") {
  const ScratchDirectory directory;
  TinyModel(tiny_layouts()[0]).write(directory);
  const kvq::Context context = make_context();
  llama::Model model(directory.path(), 1);
  const std::vector<int32_t> tokens = random_tokens(20, TinyModel::kVocabulary);
  llama::Session session(model, context, nullptr);
  const std::span<const float> last = session.forward(tokens, false);
  REQUIRE(last.size() == TinyModel::kVocabulary);
  const double difference =
      largest_difference({last.begin(), last.end()}, {TinyModel(tiny_layouts()[0]).logits(tokens)[19]});
  CHECK(difference < kTolerance);
}

TEST_CASE("the losses of a softmax agree with float64, for likely and for hopeless tokens") {
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal(0.0f, 20.0f);
  std::vector<float> logits(1003);
  for (float& logit : logits) logit = normal(random);
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  for (int32_t token = 0; token < 1003; ++token) {
    const double expected = std::log(sum) - static_cast<double>(logits[static_cast<size_t>(token)]);
    CHECK(llama::negative_log_likelihood(logits, token) == doctest::Approx(expected).epsilon(1e-6));
  }
}

TEST_CASE("swiglu agrees with float64 from one end of the exponential's range to the other") {
  std::vector<float> gate;
  for (int i = -1200; i <= 1200; ++i) gate.push_back(0.1f * static_cast<float>(i));
  const std::vector<float> input = gate;
  llama::swiglu(gate, std::vector<float>(gate.size(), 3.0f));
  for (size_t i = 0; i < gate.size(); ++i) {
    const double x = input[i];
    CHECK(std::abs(gate[i] - 3.0 * x / (1.0 + std::exp(-x))) <= 1e-6 * std::abs(x));
  }
}

TEST_CASE("a pool runs every index exactly once, loop after loop") {
  for (const int32_t threads : {1, 2, 7}) {
    llama::ThreadPool pool(threads);
    CHECK(pool.size() == threads);
    for (int32_t loop = 0; loop < 2000; ++loop) {
      std::vector<int32_t> counts(static_cast<size_t>(loop % 23), 0);
      pool.run(static_cast<int32_t>(counts.size()), [&](int32_t i) { ++counts[static_cast<size_t>(i)]; });
      REQUIRE(std::ranges::all_of(counts, [](int32_t count) { return count == 1; }));
    }
  }
  CHECK_THROWS_AS(llama::ThreadPool(0), llama::Error);
}

TEST_CASE("tokens outside the vocabulary and empty input are refused") {
  const ScratchDirectory directory;
  TinyModel(tiny_layouts()[0]).write(directory);
  const kvq::Context context = make_context();
  llama::Model model(directory.path(), 1);
  llama::Session session(model, context, nullptr);
  const std::vector<int32_t> beyond{1, TinyModel::kVocabulary};
  const std::vector<int32_t> negative{-1};
  CHECK_THROWS_WITH_AS(session.forward(beyond, false), Contains("token 50 is outside"), llama::Error);
  CHECK_THROWS_WITH_AS(session.forward(negative, false), Contains("token -1 is outside"), llama::Error);
  CHECK_THROWS_AS(session.forward({}, false), llama::Error);
}

TEST_CASE("a tensor of another shape than the configuration's is refused by name") {
  const ScratchDirectory directory;
  TinyModel(tiny_layouts()[0]).write(directory);
  nlohmann::json config = nlohmann::json::parse(std::ifstream(directory.path() / "config.json"));
  config["intermediate_size"] = 41;
  directory.write("config.json", config.dump());
  CHECK_THROWS_WITH_AS(llama::Model(directory.path(), 1), Contains("mlp.gate_proj.weight has shape [40, 24]"),
                       llama::Error);
}

TEST_CASE("the demo model gives the reference's losses, logits and greedy text") {
  const std::filesystem::path directory = demo_model();
  const nlohmann::json reference = read_reference();
  const kvq::Context context = make_context();
  llama::Model model(directory, 2);
  const llama::Tokenizer tokenizer(directory / "tokenizer.json");
  llama::Session session(model, context, nullptr);

  SUBCASE("greedy text") {
    const auto expected = reference.at("greedy_ids_with_bos").get<std::vector<int32_t>>();
    std::vector<int32_t> ids = tokenizer.encode(reference.at("greedy_prompt").get<std::string>());
    ids.insert(ids.begin(), model.config().bos_token);
    std::span<const float> logits = session.forward(ids, false);
    while (ids.size() < expected.size()) {
      ids.push_back(llama::greedy(logits));
      logits = session.forward(std::span(&ids.back(), 1), false);
    }
    CHECK(ids == expected);
  }
  SUBCASE("logits and loss of the evaluation text") {
    const std::string text = read_test_text("wikitext2-test.txt");
    if (text.empty()) {
      MESSAGE("skipped: ../shared/data/wikitext2-test.txt is not here");
      return;
    }
    const std::vector<int32_t> ids = tokenizer.encode(std::string_view(text).substr(0, 20000));
    const std::span<const int32_t> window = std::span(ids).first(2048);
    const auto first_ids = reference.at("first_32_ids").get<std::vector<int32_t>>();
    CHECK(std::ranges::equal(window.first(32), first_ids));

    const std::vector<float> logits = run_in_chunks(session, window, 64);
    const auto vocabulary = static_cast<size_t>(model.config().vocab_size);
    const auto expected = reference.at("logits_after_first_512_tokens_first_16").get<std::vector<float>>();
    for (size_t i = 0; i < expected.size(); ++i) {
      CHECK(std::abs(logits[511 * vocabulary + i] - expected[i]) < 2e-2f);
    }
    double loss = 0.0;
    for (size_t i = 0; i + 1 < window.size(); ++i) {
      loss += llama::negative_log_likelihood(std::span(logits).subspan(i * vocabulary, vocabulary), window[i + 1]);
    }
    const double mean = loss / static_cast<double>(window.size() - 1);
    CHECK(std::abs(mean - reference.at("window_mean_nll").at(0).get<double>()) < 1e-3);
  }
}

}  // namespace model_test
