// scripts/make_checkpoint.py: random weights in a model's shape.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <string>

#include "llama/config.h"
#include "llama/weights.h"
#include "program_run.h"
#include "support/places.h"
#include "support/scratch_directory.h"

namespace made_checkpoint_test {

TEST_CASE("a checkpoint that is made has the shapes of its config in shards, random weights, and runs") {
  const std::filesystem::path script = std::filesystem::path(source_tree()) / "scripts/make_checkpoint.py";
  if (!std::filesystem::exists(script) || std::system("python3 --version > /dev/null 2>&1") != 0) {
    MESSAGE("skipped: there is no ", script.string(), ", or no python3 to run it");
    return;
  }
  const ScratchDirectory scratch;
  const std::string model = (scratch.path() / "made").string();
  const std::string make = "python3 '" + script.string() + "' '" + model +
                           "' --layers 2 --hidden 256 --mlp 512 --heads 4 --kv-heads 2 --head-dim 64 --vocab 8200 "
                           "--std 0.03 --shard-bytes 5000000 --tokenizer '" +
                           demo_model() + "' > /dev/null";
  REQUIRE(std::system(make.c_str()) == 0);
  const llama::ModelConfig config = llama::load_config(model);
  CHECK(config.vocab_size == 8200);
  const llama::Checkpoint checkpoint(model);
  CHECK(std::filesystem::exists(model + "/model-00003-of-00003.safetensors"));
  for (const llama::LinearLayer& layer : llama::all_linear_layers(config)) {
    CAPTURE(layer.name);
    const std::vector<float> weights = llama::to_float(checkpoint.at(layer.name + ".weight"));
    REQUIRE(weights.size() == static_cast<size_t>(layer.weights()));
    double squares = 0.0;
    for (const float weight : weights) squares += double{weight} * weight;
    CHECK(std::sqrt(squares / static_cast<double>(weights.size())) == doctest::Approx(0.03).epsilon(0.02));
  }
  CHECK(llama::to_float(checkpoint.at("model.norm.weight")) == std::vector<float>(256, 1.0F));
  const nlohmann::json text = run_json({"generate", "--model", model, "--prompt", "The", "--max-tokens", "4"});
  CHECK(text["generated_tokens"].get<int>() > 0);
}

}  // namespace made_checkpoint_test
