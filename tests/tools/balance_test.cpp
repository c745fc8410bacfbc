#include "llama/balance.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "eval_commands.h"
#include "llama/error.h"
#include "program_run.h"
#include "runs.h"
#include "support/scratch_directory.h"
#include "tiny_model.h"

namespace balance_test {
namespace {

using nlohmann::json;

struct Written {
  std::string name;
  std::string bytes;
};

std::string bytes_of(const llama::SafetensorsContent& content) {
  std::string bytes;
  llama::write_safetensors(content, [&bytes](std::span<const std::byte> piece) {
    bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  });
  return bytes;
}

std::vector<Written> folded(const std::filesystem::path& model, const std::vector<llama::LayerScales>& layers) {
  const llama::Checkpoint checkpoint(model);
  std::vector<Written> files;
  llama::fold(checkpoint, llama::load_config(model), layers,
              [&files](const std::string& name, const llama::SafetensorsContent& content) {
                files.push_back({name, bytes_of(content)});
              });
  return files;
}

kvq::Centres find(const std::filesystem::path& model, const llama::ScaleOptions& options) {
  const kvq::Context context(kvq::initialised<kvq_context_options>());
  return llama::find_scales(context.get(), llama::Checkpoint(model), llama::load_config(model), options);
}

// Scales to fold.
std::vector<llama::LayerScales> balance(const std::filesystem::path& model, bool powers_of_two = false) {
  const kvq::Centres scales = find(model, {.fold = true, .powers_of_two = powers_of_two});
  std::vector<llama::LayerScales> layers;
  for (int32_t i = 0; i < scales.describe().n_layers; ++i) layers.push_back(llama::scales_of(scales, i));
  return layers;
}

std::vector<kvq_centres_layer_info> report(const std::filesystem::path& model) {
  const kvq::Centres scales = find(model, {.fold = true});
  std::vector<kvq_centres_layer_info> layers;
  for (int32_t i = 0; i < scales.describe().n_layers; ++i) layers.push_back(scales.describe_layer(i));
  return layers;
}

// Scales as uneven as those of large models: powers of two, a few channels several times as large as the others.
std::vector<llama::LayerScales> outliers(const llama::ModelConfig& config) {
  std::mt19937 random(1);
  const auto dim = static_cast<size_t>(config.head_dim);
  std::vector<llama::LayerScales> layers(static_cast<size_t>(config.n_layers));
  for (llama::LayerScales& layer : layers) {
    std::vector<float> keys(static_cast<size_t>(config.kv_heads) * dim);
    for (size_t i = 0; i < keys.size(); ++i) {
      const bool is_second = i % dim >= dim / 2;
      keys[i] = is_second ? keys[i - dim / 2] : std::exp2(static_cast<float>(random() % 3) + (i % 11 == 3 ? 3 : -1));
      // Norms have one scale for all heads.
      if (config.qk_norm && i >= dim) keys[i] = keys[i - dim];
      layer.values.push_back(std::exp2(static_cast<float>(random() % 3) + (random() % 11 == 0 ? 2 : -1)));
    }
    layer.keys = keys;
  }
  return layers;
}

// A copy of a model with scales folded in.
class Folded {
 public:
  Folded(const std::filesystem::path& model, const std::vector<llama::LayerScales>& layers) {
    for (const auto& entry : std::filesystem::directory_iterator(model)) {
      if (entry.path().extension() == ".json") {
        std::filesystem::copy_file(entry.path(), directory_.path() / entry.path().filename());
      }
    }
    for (const Written& file : folded(model, layers)) directory_.write(file.name, file.bytes);
  }

  const std::filesystem::path& path() const { return directory_.path(); }
  std::string name() const { return path().string(); }

 private:
  ScratchDirectory directory_;
};

double largest_difference(const std::vector<std::vector<double>>& a, const std::vector<std::vector<double>>& b) {
  double largest = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < a[i].size(); ++j) largest = std::max(largest, std::abs(a[i][j] - b[i][j]));
  }
  return largest;
}

double kl(const std::string& model, const std::string& format) {
  return run_json({"eval", "perplexity", "--model", model, "--text", kText, "--context", "512", "--windows", "2",
                   "--kv", format})["kl_mean"]
      .get<double>();
}

}  // namespace

TEST_CASE("a model of every layout computes the same with scales folded in") {
  const std::vector<int32_t> tokens = random_tokens(40, TinyModel::kVocabulary);
  for (const TinyLayout& layout : tiny_layouts()) {
    CAPTURE(layout.name);
    const ScratchDirectory directory;
    TinyModel tiny(layout);
    tiny.write(directory);
    const std::vector<std::vector<double>> expected = tiny.logits(tokens);
    const Folded copy(directory.path(), outliers(llama::load_config(directory.path())));
    const llama::Checkpoint checkpoint(copy.path());
    for (const auto& [name, tensor] : checkpoint.tensors()) {
      tiny.replace(name, llama::to_float(*tensor));
    }
    // Powers of two, in float64; but Gemma's norms of queries and keys are stored less 1, in float32.
    CHECK(largest_difference(tiny.logits(tokens), expected) < (layout.gemma == 3 ? 1e-5 : 1e-9));
    // The scales reach the weights.
    CHECK(read_file(copy.path() / "model.safetensors") != read_file(directory.path() / "model.safetensors"));
  }
}

TEST_CASE("balanced channels are in balance, whatever they were before") {
  for (const TinyLayout& layout : tiny_layouts()) {
    CAPTURE(layout.name);
    const ScratchDirectory directory;
    TinyModel(layout).write(directory);
    const Folded rescaled(directory.path(), outliers(llama::load_config(directory.path())));
    const Folded balanced(rescaled.path(), balance(rescaled.path()));
    for (const kvq_centres_layer_info& layer : report(rescaled.path())) {
      CHECK(layer.key_imbalance > 8.0);
      CHECK(layer.key_noise > 1.5 * layer.scaled_key_noise);
      CHECK(layer.value_noise > 1.5 * layer.scaled_value_noise);
    }
    // Scales are FP16 numbers.
    for (const kvq_centres_layer_info& layer : report(balanced.path())) {
      CHECK(layer.key_imbalance == doctest::Approx(1.0).epsilon(2e-3));
      CHECK(layer.value_imbalance == doctest::Approx(1.0).epsilon(2e-3));
      if (layout.qkv_bias) continue;  // scales take no offset away
      CHECK(layer.value_noise == doctest::Approx(1.0).epsilon(1e-4));
      if (!layout.qk_norm) CHECK(layer.key_noise == doctest::Approx(1.0).epsilon(1e-4));
    }
    for (const llama::LayerScales& layer : balance(rescaled.path(), true)) {
      for (const float scale : layer.keys) CHECK(std::exp2(std::round(std::log2(scale))) == scale);
    }
  }
}

TEST_CASE("heads that do nothing keep their scales, and weights that are no numbers are refused by name") {
  const TinyLayout& layout = tiny_layouts().front();
  const ScratchDirectory directory;
  TinyModel tiny(layout);
  tiny.write(directory);
  const std::string name = "model.layers.0.self_attn.k_proj.weight";
  const llama::Checkpoint checkpoint(directory.path());
  std::vector<float> weights = llama::to_float(checkpoint.at(name));
  std::ranges::fill(weights, 0.0F);
  tiny.replace(name, weights);
  const ScratchDirectory zero;
  tiny.write(zero);
  const std::vector<llama::LayerScales> layers = balance(zero.path());
  for (const float scale : layers.front().keys) CHECK(scale == 1.0F);
  weights[3] = std::nanf("");
  tiny.replace(name, weights);
  const ScratchDirectory broken;
  tiny.write(broken);
  check_failure({"balance", "--model", broken.path().string()}, 1, name + " has numbers that are not finite");
}

TEST_CASE("numbers that scales make too large for FP16 are refused") {
  const ScratchDirectory directory;
  TinyModel(tiny_layouts().front()).write(directory);
  const llama::Checkpoint checkpoint(directory.path());
  llama::SafetensorsContent content;
  std::vector<std::vector<uint16_t>> halves;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    const std::vector<uint16_t>& numbers =
        halves.emplace_back(static_cast<size_t>(tensor->elements()), uint16_t{0x3C00});  // ones
    content.tensors.push_back({name, "F16", tensor->shape, std::as_bytes(std::span(numbers))});
  }
  const ScratchDirectory half;
  half.write("config.json", read_file(directory.path() / "config.json"));
  half.write("model.safetensors", bytes_of(content));
  std::vector<llama::LayerScales> layers = balance(half.path());
  CHECK(folded(half.path(), layers).size() == 1);
  layers.front().values.front() = 1e9F;
  CHECK_THROWS_WITH_AS(folded(half.path(), layers),
                       "tensor model.layers.0.self_attn.v_proj.weight: numbers become too large for FP16",
                       llama::Error);
}

TEST_CASE("a rescaled model loses much, and balanced as little as before") {
  const Folded rescaled(kModel, outliers(llama::load_config(kModel)));
  const ScratchDirectory scratch;
  const std::string exact = (scratch.path() / "exact").string();
  const std::string rounded = (scratch.path() / "rounded").string();
  const json report = run_json({"balance", "--model", rescaled.name(), "--out", exact, "--powers-of-two", "--json"});
  check_numbers(report, {"key_noise", "balanced_key_noise", "value_noise", "bytes"});
  CHECK(report["key_noise"].get<double>() > 4.0);
  CHECK(report["balanced_key_noise"].get<double>() < 1.2);
  CHECK(report["layers"].size() == 6);
  CHECK(run_text({"balance", "--model", rescaled.name(), "--out", rounded}).find("written to " + rounded) !=
        std::string::npos);
  CHECK(std::filesystem::exists(exact + "/tokenizer.json"));
  const std::string scales = (scratch.path() / "scales").string();
  CHECK(run_text({"balance", "--model", rescaled.name(), "--scales", scales}).find("written to " + scales) !=
        std::string::npos);

  const auto evaluate = [&rescaled](const char* format) {
    return run({"eval", "perplexity", "--model", rescaled.name(), "--text", kText, "--context", "512", "--windows", "2",
                "--kv", format, "--json"});
  };
  const double plain = kl(kModel, "gs2@none");
  const Outcome warned = evaluate("gs2@none");
  CHECK(json::parse(warned.out)["kl_mean"].get<double>() > 4.0 * plain);
  CHECK(warned.err.find("outlier channels") != std::string::npos);
  CHECK(warned.err.find("write @weights or @first in place of @none, or use the model") != std::string::npos);
  CHECK(evaluate("int4").err.find("outlier channels") != std::string::npos);
  CHECK(evaluate(("gs2:" + kModel + "/centres.safetensors").c_str()).err.find("@weights") == std::string::npos);
  CHECK(evaluate("fp16+adasnap:128").err.empty());
  CHECK(kl(rescaled.name(), "gs2") == doctest::Approx(kl(kModel, "gs2")).epsilon(0.2));  // finds scales, and is silent
  CHECK(kl(rescaled.name(), "gs2@weights") == doctest::Approx(plain).epsilon(0.2));
  CHECK(kl(exact, "gs2@none") == doctest::Approx(plain).epsilon(0.2));
  CHECK(kl(rounded, "gs2@none") == doctest::Approx(plain).epsilon(0.2));
  // A cache with the scales does as well as the model that they are folded into, in every format.
  for (const char* format : {"gs2", "gt2", "gs4", "int4+hadamard", "int4"}) {
    CAPTURE(format);
    const double unscaled = kl(kModel, std::string(format) + "@none");
    CHECK(kl(rescaled.name(), std::string(format) + "@" + scales) == doctest::Approx(unscaled).epsilon(0.2));
  }

  const auto perplexity_of = [](const std::string& model) {
    return run_json({"eval", "perplexity", "--model", model, "--text", kText, "--context", "128", "--windows", "2",
                     "--against", "none"})["perplexity"]
        .get<double>();
  };
  // The cache's FP16 numbers may be subnormal in one of the two.
  CHECK(std::abs(perplexity_of(exact) / perplexity_of(kModel) - 1.0) < 1e-6);
  CHECK(std::abs(perplexity_of(rounded) / perplexity_of(kModel) - 1.0) > 1e-6);
}

TEST_CASE("a rescaled model is quantized as well as the original if it is balanced first") {
  const Folded rescaled(kModel, outliers(llama::load_config(kModel)));
  const ScratchDirectory scratch;
  const auto path = [&scratch](const char* name) { return (scratch.path() / name).string(); };
  const auto quantize = [&](const std::string& model, const char* out, const Arguments& more) {
    return run_json(with({"quantize", "--model", model, "--scheme", "vq-3", "--out", path(out), "--json"}, more));
  };
  const auto loss = [&](const std::string& model, const char* weights) {
    return run_json({"eval", "perplexity", "--model", model, "--weights", path(weights), "--against-original", "--text",
                     kText, "--context", "512", "--windows", "2", "--kv", "fp16"})["kl_mean"]
        .get<double>();
  };
  quantize(kModel, "original", {});
  quantize(rescaled.name(), "rescaled", {});
  CHECK(quantize(rescaled.name(), "balanced", {"--balance", path("model")})["balanced"] == path("model"));
  const double original = loss(kModel, "original");
  CHECK(loss(rescaled.name(), "rescaled") > 1.1 * original);
  CHECK(loss(path("model"), "balanced") == doctest::Approx(original).epsilon(0.08));
  check_failure(
      {"quantize", "--model", rescaled.name(), "--scheme", "vq-3", "--out", path("again"), "--balance", path("model")},
      1, path("model") + " is not empty: name a new directory");
  CHECK(!std::filesystem::exists(path("again")));
}

TEST_CASE("balance writes only to new directories, and without one only reports") {
  const ScratchDirectory scratch;
  scratch.write("mine", "x");
  check_failure({"balance", "--model", kModel, "--out", scratch.path().string()}, 1, "is not empty");
  CHECK(read_file(scratch.path() / "mine") == "x");
  const std::string text = run_text({"balance", "--model", kModel});
  CHECK(text.find("noise of") != std::string::npos);
  CHECK(text.find("written") == std::string::npos);
  check_failure({"balance", "--model", scratch.path().string()}, 1, "config.json");
  const ScratchDirectory model;
  TinyModel(tiny_layouts().front()).write(model);
  const std::filesystem::path out = scratch.path() / "out";
  const Arguments arguments{"balance", "--model", model.path().string(), "--out", out.string()};
  if (kvq_test::can_make_links())
    std::filesystem::create_symlink(model.path() / "absent", model.path() / "broken.json");
  CHECK(run_json(with(arguments, {"--json"}))["directory"] == out.string());  // links to nothing are left out
  check_failure(arguments, 1, "is not empty");
  CHECK(std::filesystem::exists(out / "model.safetensors"));
  const json both = run_json({"balance", "--model", model.path().string(), "--out", (scratch.path() / "both").string(),
                              "--scales", (scratch.path() / "scales").string(), "--json"});
  CHECK(both["bytes"].get<uint64_t>() == std::filesystem::file_size(scratch.path() / "both" / "model.safetensors") +
                                             std::filesystem::file_size(scratch.path() / "scales"));
}

}  // namespace balance_test
