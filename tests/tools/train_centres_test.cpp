#include <doctest/doctest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kvq.hpp"
#include "letter_model.h"
#include "llama/mapped_file.h"
#include "llama/model.h"
#include "program_run.h"
#include "runs.h"
#include "support/places.h"

namespace train_centres_test {
namespace {

using nlohmann::json;

class Workplace : public LetterModel {
 public:
  Arguments train(const std::string& out, const Arguments& more = {}, const char* tokens = "400") const {
    return with({"train", "centres", "--model", model(), "--text", path("text.txt"), "--tokens", tokens, "--out", out},
                more);
  }
};

/// Inputs of layer 0 for the windows of 200 letters that 400 tokens make of the text: [tokens, width].
struct Seen {
  explicit Seen(const Workplace& place) {
    const kvq::Context context = make_context();
    llama::Model model(place.model(), 1);
    width = static_cast<size_t>(model.config().kv_heads) * static_cast<size_t>(model.config().head_dim);
    llama::Session session(model, context, nullptr);
    session.observe([&](int32_t layer, const llama::ObservedAttention& seen) {
      if (layer == 0) values.insert(values.end(), seen.v, seen.v + static_cast<size_t>(seen.n) * width);
    });
    const json vocabulary = json::parse(contents(place.path("tokenizer.json")))["model"]["vocab"];
    std::vector<int32_t> tokens;
    for (const char letter : contents(place.path("text.txt"))) tokens.push_back(vocabulary[std::string(1, letter)]);
    session.forward(std::span(tokens).first(64), false);
  }

  size_t width = 0;
  std::vector<float> values;
};

}  // namespace

TEST_CASE("centres are trained, written, and loaded with what the command reported") {
  const Workplace place;
  const std::string out = place.path("centres.safetensors");
  const json result = run_json(place.train(out, {"--key-centres", "5", "--value-centres", "3"}));
  check_numbers(result, {"bytes", "memory_bytes", "key_centres", "value_centres", "key_residual", "value_residual",
                         "tokens", "seconds"});
  REQUIRE(result["layers"].size() == 2);
  for (const json& layer : result["layers"]) {
    check_numbers(layer, {"layer", "key_residual", "value_residual", "seconds"});
    CHECK(layer["key_residual"].get<double>() < 1.0);
    CHECK(layer["value_residual"].get<double>() < 1.0);
  }
  const kvq::Context context = make_context();
  const llama::MappedFile file(out);
  CHECK(result["bytes"] == file.bytes().size());
  const kvq::Centres centres = kvq::Centres::load(context, file.bytes());
  const kvq_centres_info info = centres.describe();
  CHECK(info.layers_present == 2);
  CHECK(info.key_centres == 5);
  CHECK(info.value_centres == 3);
  CHECK(info.tokens == 400);
  CHECK(result["tokens"] == 400);
  CHECK(result["memory_bytes"] == info.bytes);
  CHECK(info.key_residual == doctest::Approx(result["key_residual"].get<double>()));
  CHECK(info.key_scales == 1);
  CHECK(info.value_scales == 1);
  CHECK(result["layers"][0]["key_noise"].get<double>() >= result["layers"][0]["scaled_key_noise"].get<double>());
  CHECK(info.model_id == llama::Model(place.model(), 1).weights().fingerprint);
  CHECK(std::string(info.note).find("text.txt") != std::string::npos);

  const std::string table =
      run_text(place.train(place.path("again"), {"--key-centres", "5", "--value-centres", "3", "--threads", "3"}));
  CHECK(table.find("left of values") != std::string::npos);
  CHECK(table.find("5 centres for the keys and 3 for the values of a head") != std::string::npos);
  CHECK(table.find(place.path("again")) != std::string::npos);
  CHECK(contents(place.path("again")) == contents(out));
}

TEST_CASE("with one centre a value loses the mean of its head") {
  const Workplace place;
  const std::string out = place.path("mean.safetensors");
  const json result = run_json(place.train(out, {"--key-centres", "0", "--value-centres", "1", "--no-scales"}, "64"));
  const Seen seen(place);
  double left = 0.0;
  double all = 0.0;
  for (size_t channel = 0; channel < seen.width; ++channel) {
    double sum = 0.0;
    double squares = 0.0;
    for (size_t at = channel; at < seen.values.size(); at += seen.width) {
      sum += double{seen.values[at]};
      squares += double{seen.values[at]} * double{seen.values[at]};
    }
    const double n = static_cast<double>(seen.values.size() / seen.width);
    left += squares - sum * sum / n;
    all += squares;
  }
  CHECK(result["layers"][0]["value_residual"].get<double>() == doctest::Approx(left / all).epsilon(1e-3));
  CHECK(result["layers"][0]["key_residual"] == 0.0);
  CHECK(contents(out).find("keys.centres") == std::string::npos);
}

TEST_CASE("centres of the demo model take away most of its keys") {
  const Workplace place;
  const std::string out = place.path("demo.safetensors");
  const std::string demo = demo_model();
  const json result = run_json({"train", "centres", "--model", demo, "--text", demo + "/sample.txt", "--tokens", "2048",
                                "--key-centres", "8", "--value-centres", "8", "--out", out});
  CHECK(result["layers"].size() == 6);
  CHECK(result["key_residual"].get<double>() < 0.3);
  CHECK(result["value_residual"].get<double>() < 0.9);
}

TEST_CASE("training of centres that cannot be done is refused before it begins") {
  const Workplace place;
  const std::string out = place.path("centres.safetensors");
  const std::string model = place.model();
  const std::string text = place.path("text.txt");
  check_failure({"train", "centres", "--text", text, "--out", out}, 2, "--model");
  check_failure({"train", "centres", "--model", model, "--out", out}, 2, "--text");
  check_failure({"train", "centres", "--model", model, "--text", text}, 2, "--out");
  check_failure(place.train(out, {"--key-centres", "257"}), 2, "--key-centres");
  check_failure(place.train(out, {"--value-centres", "-1"}), 2, "--value-centres");
  check_failure(place.train(out, {"--key-centres", "0", "--value-centres", "0", "--no-scales"}), 1, "all 0");
  check_failure(place.train(place.path("absent/centres")), 1, "cannot write");
  check_failure(place.train(out, {}, "200"), 1, "layer 0 has 200 tokens, too few for 256 centres");
}

}  // namespace train_centres_test
