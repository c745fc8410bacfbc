#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "letter_model.h"
#include "llama/mapped_file.h"
#include "llama/model.h"
#include "program_run.h"

namespace train_router_test {
namespace {

using nlohmann::json;

class Workplace : public LetterModel {
 public:
  /// A command that takes a moment.
  Arguments train(const std::string& out, const Arguments& more = {}, const char* tokens = "400") const {
    return with({"train", "router", "--model", model(), "--text", path("text.txt"), "--tokens", tokens, "--epochs", "4",
                 "--out", out},
                more);
  }
};

}  // namespace

TEST_CASE("routers are trained, written, and loaded with what the command reported") {
  const Workplace place;
  const std::string out = place.path("router.safetensors");
  const json result = run_json(place.train(out, {"--mean-bits", "8", "--sharing", "1"}));
  check_numbers(
      result, {"bytes", "mean_bits", "lambda", "tolerance", "accuracy", "tokens", "label_seconds", "training_seconds"});
  CHECK(result["method"] == "label");
  CHECK(result["experts"] == json({"fp16", "int4", "int2"}));
  REQUIRE(result["groups"].size() == 2);
  for (const json& group : result["groups"]) {
    check_numbers(group, {"first_layer", "last_layer", "mean_bits", "accuracy"});
    double sum = 0.0;
    for (const json& share : group["shares"]) sum += share.get<double>();
    CHECK(sum == doctest::Approx(1.0));
  }

  const kvq::Context context = make_context();
  const llama::MappedFile file(out);
  CHECK(result["bytes"] == file.bytes().size());
  const kvq::Router router = kvq::Router::load(context, file.bytes());
  const kvq_router_info info = router.describe();
  CHECK(info.n_layers == 2);
  CHECK(info.kv_heads == 2);
  CHECK(info.head_dim == 16);
  CHECK(info.sharing == 1);
  CHECK(info.groups == 2);
  CHECK(info.tokens == 400);
  CHECK(result["tokens"] == 400);
  CHECK(info.mean_bits == doctest::Approx(result["mean_bits"].get<double>()));
  CHECK(info.model_id == llama::Model(place.model(), 1).weights().fingerprint);
  CHECK(std::string(info.experts) == "fp16, int4, int2");
  CHECK(std::string(info.note).find("400 tokens in windows of 400 of text.txt") != std::string::npos);
  const std::vector<std::byte> again = router.save();
  CHECK(std::equal(again.begin(), again.end(), file.bytes().begin(), file.bytes().end()));

  const std::string table =
      run_text(place.train(place.path("again"), {"--mean-bits", "8", "--sharing", "1", "--threads", "3"}));
  CHECK(table.find("as labelled") != std::string::npos);
  CHECK(table.find(place.path("again")) != std::string::npos);
  CHECK(contents(place.path("again")) == contents(out));
}

TEST_CASE("a weight of the model's loss asks for the paper's method") {
  const Workplace place;
  const json result =
      run_json(place.train(place.path("router"), {"--lambda", "0", "--experts", "int8,int8/int4,int2"}));
  CHECK(result["method"] == "paper");
  CHECK(result["lambda"] == 0.0);
  CHECK(result["accuracy"] == 0.0);
  CHECK(result["experts"] == json({"int8", "int8/int4", "int2"}));
}

TEST_CASE("codes can be among the experts, and each head can vote") {
  const Workplace place;
  const std::string codes = place.path("codes.safetensors");
  run_json({"train", "codebook", "--model", place.model(), "--text", place.path("text.txt"), "--bits", "1", "--scope",
            "head", "--tokens", "400", "--out", codes});
  const json result = run_json(place.train(place.path("router"), {"--experts", "fp16,int4,commvq", "--codebook", codes,
                                                                  "--votes", "head", "--mean-bits", "8"}));
  CHECK(result["experts"] == json({"fp16", "int4", "commvq"}));
  check_failure(place.train(place.path("other"), {"--experts", "fp16,commvq"}), 1, "codebook is NULL");
}

TEST_CASE("router training that cannot be done is refused before it begins") {
  const Workplace place;
  const std::string out = place.path("router");
  const std::string model = place.model();
  const std::string text = place.path("text.txt");
  check_failure({"train", "router", "--text", text, "--out", out}, 2, "--model");
  check_failure({"train", "router", "--model", model, "--out", out}, 2, "--text");
  check_failure({"train", "router", "--model", model, "--text", text}, 2, "--out");
  check_failure(place.train(out, {"--method", "guess"}), 2, "--method");
  check_failure(place.train(out, {"--method", "label", "--lambda", "0.5"}), 2, "--lambda");
  check_failure(place.train(out, {"--lambda", "0.5", "--mean-bits", "4"}), 2, "--mean-bits");
  check_failure(place.train(out, {"--lambda", "2"}), 2, "--lambda");
  check_failure(place.train(out, {"--mean-bits", "17"}), 2, "--mean-bits");
  check_failure(place.train(out, {"--mean-bits", "2"}), 1, "mean_bits is 2");
  check_failure(place.train(out, {"--experts", "fp16, int4"}), 2, "--experts");
  check_failure(place.train(out, {"--experts", "fp16,int5"}), 1, "int5");
  check_failure(place.train(out, {"--experts", "int4"}), 2, "--experts int4: a router chooses among 2 to 8 formats");
  check_failure(place.train(out, {"--sharing", "0"}), 2, "--sharing");
  check_failure(place.train(out, {"--votes", "nobody"}), 2, "--votes");
  check_failure(place.train(out, {"--device", "cuda"}), 2, "runs on the CPU only");
  check_failure(place.train(place.path("absent/router")), 1, "cannot write");
  check_failure(place.train(out, {}, "60"), 1, "85 tokens");
}

}  // namespace train_router_test
