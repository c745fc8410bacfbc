// kvq quantize, and --weights of what it writes.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "eval_commands.h"
#include "kvq.hpp"
#include "letter_model.h"
#include "llama/mapped_file.h"
#include "llama/model.h"
#include "llama/weights.h"
#include "packed_layers.h"
#include "program_run.h"
#include "runs.h"
#include "support/scratch_directory.h"
#include "tiny_model.h"

namespace quantize_test {
namespace {

using nlohmann::json;

class Workplace : public LetterModel {
 public:
  explicit Workplace(bool biases = false) : LetterModel(packable_layout(biases)) {}

  Arguments quantize(const std::string& scheme, const std::string& out, const Arguments& more = {}) const {
    return with({"quantize", "--model", model(), "--scheme", scheme, "--out", out}, more);
  }

  /// The file of a scheme.
  std::string quantized(const std::string& scheme, const Arguments& more = {}) const {
    const std::string out = path((scheme + ".safetensors").c_str());
    run_json(with(quantize(scheme, out, more), {"--force"}));
    return out;
  }

  Arguments perplexity(const Arguments& more = {}) const {
    return with({"eval", "perplexity", "--model", model(), "--text", path("text.txt"), "--context", "128"}, more);
  }

  double perplexity_with(const std::string& weights) const {
    return run_json(perplexity({"--weights", weights}))["perplexity"];
  }
};

constexpr size_t kLayers = 2 * 7;

/// What an interrupted run with defaults leaves: the first `n` matrices of a finished one's file, and its options.
std::filesystem::path leave_partial(const Workplace& place, const std::string& finished, const std::string& out,
                                    const std::string& scheme, size_t n) {
  const std::filesystem::path partial = out + ".partial";
  std::filesystem::create_directory(partial);
  const kvq::Context context = make_context();
  const llama::MappedFile file(finished);
  const std::vector<llama::LinearLayer> layers = llama::all_linear_layers(llama::load_config(place.model()));
  for (size_t i = 0; i < n; ++i) {
    const kvq::Matrix matrix = kvq::Matrix::load(context, file.bytes(), layers[i].name);
    const std::vector<std::byte> bytes = matrix.save(layers[i].name);
    std::ofstream(partial / (layers[i].name + ".safetensors"), std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  std::ostringstream fingerprint;
  fingerprint << std::hex << std::setw(16) << std::setfill('0') << llama::Checkpoint(place.model()).fingerprint();
  const json options = {{"model", fingerprint.str()},
                        {"scheme", scheme},
                        {"seed", 1},
                        {"hessian", ""},
                        {"rounding", "ldlq"},
                        {"damping", 0.01},
                        {"version", kvq_version_string()}};
  std::ofstream(partial / "options.json") << options;
  return partial;
}

/// Σ over rows e of E of e·H·eᵀ.
double product_with(const std::vector<double>& rows, const std::vector<double>& hessian, size_t in) {
  double sum = 0.0;
  for (size_t row = 0; row < rows.size(); row += in) {
    for (size_t i = 0; i < in; ++i) {
      double dot = 0.0;
      for (size_t j = 0; j < in; ++j) dot += hessian[i * in + j] * rows[row + j];
      sum += rows[row + i] * dot;
    }
  }
  return sum;
}

/// The mean of x·xᵀ over what each linear layer reads when a model runs over tokens.
using MeanProducts = std::map<std::pair<int32_t, llama::LinearInput>, std::vector<double>>;

MeanProducts mean_products(const std::string& directory, std::span<const int32_t> tokens) {
  const kvq::Context context = make_context();
  llama::Model model(directory, 1);
  llama::Session session(model, context, nullptr);
  MeanProducts result;
  session.observe_inputs([&](int32_t layer, llama::LinearInput which, std::span<const float> x) {
    const size_t in = x.size() / tokens.size();
    std::vector<double>& mean = result[{layer, which}];
    mean.resize(in * in);
    for (size_t row = 0; row < x.size(); row += in) {
      for (size_t i = 0; i < in * in; ++i) {
        mean[i] += double{x[row + i / in]} * x[row + i % in] / static_cast<double>(tokens.size());
      }
    }
  });
  session.forward(tokens, false);
  return result;
}

}  // namespace

TEST_CASE("a model in FP16 and in 8 bits has the perplexity that it had, and one in 2 bits another") {
  const ScratchDirectory scratch;
  const Arguments measure = perplexity({"--context", "256", "--windows", "2"});
  const double plain = run_json(measure)["perplexity"];
  const auto change = [&](const std::string& scheme) {
    const std::string out = (scratch.path() / scheme).string();
    run_json({"quantize", "--model", kModel, "--scheme", scheme, "--out", out});
    return run_json(with(measure, {"--weights", out}))["perplexity"].get<double>() / plain - 1.0;
  };
  CHECK(std::abs(change("fp16")) < 1e-4);
  CHECK(std::abs(change("nuq-8")) < 5e-3);
  CHECK(change("nuq-2") > 5e-2);

  const Workplace place(true);  // with biases
  const double with_biases = run_json(place.perplexity())["perplexity"];
  CHECK(place.perplexity_with(place.quantized("fp16")) == doctest::Approx(with_biases).epsilon(1e-4));
}

TEST_CASE("what quantize reports is what the decoded weights differ by and what the file's tensors take") {
  const Workplace place(true);
  const std::string out = place.path("nuq-4.safetensors");
  const json result = run_json(place.quantize("nuq-4", out));
  check_numbers(result, {"bits", "error", "seconds", "bytes"});
  CHECK(!result.contains("proxy_error"));
  CHECK(result["bytes"] == std::filesystem::file_size(out));
  CHECK(!std::filesystem::exists(out + ".partial"));
  REQUIRE(result["layers"].size() == kLayers);

  const kvq::Context context = make_context();
  const llama::SafetensorsFile file(out);
  const llama::Checkpoint checkpoint(place.model());
  const std::vector<llama::LinearLayer> layers = llama::all_linear_layers(llama::load_config(place.model()));
  double lost = 0.0;
  double squares = 0.0;
  double code_bits = 0.0;
  double elements = 0.0;
  for (size_t i = 0; i < kLayers; ++i) {
    const llama::LinearLayer& layer = layers[i];
    CAPTURE(layer.name);
    const json& reported = result["layers"][i];
    CHECK(reported["name"] == layer.name);
    CHECK(reported["out"] == layer.out);
    CHECK(reported["in"] == layer.in);
    CHECK(reported["resumed"] == false);
    const std::vector<float> weights = llama::to_float(checkpoint.at(layer.name + ".weight"));
    const std::vector<float> decoded = dequantize(kvq::Matrix::load(context, file.bytes(), layer.name));
    double layer_lost = 0.0;
    double layer_squares = 0.0;
    for (size_t j = 0; j < weights.size(); ++j) {
      layer_lost += std::pow(double{decoded[j]} - weights[j], 2);
      layer_squares += std::pow(weights[j], 2);
    }
    CHECK(reported["error"].get<double>() == doctest::Approx(layer_lost / layer_squares).epsilon(1e-3));
    double bits = 0.0;
    for (const char* part : {".codes", ".scales", ".signs"}) {
      bits += 8.0 * static_cast<double>(file.find(layer.name + part)->data.size());
    }
    // The scale of a whole matrix is no tensor.
    CHECK(reported["bits"].get<double>() == doctest::Approx(bits / static_cast<double>(weights.size())).epsilon(0.01));
    CHECK(file.find(layer.name + ".weight") == nullptr);
    CHECK(llama::to_float(*file.find(layer.name + ".bias")) == llama::to_float(checkpoint.at(layer.name + ".bias")));
    lost += layer_lost;
    squares += layer_squares;
    code_bits += reported["bits"].get<double>() * static_cast<double>(weights.size());
    elements += static_cast<double>(weights.size());
  }
  CHECK(result["error"].get<double>() == doctest::Approx(lost / squares).epsilon(1e-3));
  CHECK(result["bits"].get<double>() == doctest::Approx(code_bits / elements));
  for (const char* kept : {"model.embed_tokens.weight", "lm_head.weight", "model.layers.1.input_layernorm.weight"}) {
    REQUIRE(file.find(kept) != nullptr);
    CHECK(file.find(kept)->dtype == "F32");
    CHECK(std::ranges::equal(file.find(kept)->data, checkpoint.at(kept).data));
  }

  const json perplexity = run_json(place.perplexity({"--weights", out}));
  CHECK(perplexity["linear_weight_bits"].get<double>() == doctest::Approx(result["bits"].get<double>()));
  CHECK(perplexity["weight_bits"] > perplexity["linear_weight_bits"]);
  CHECK(perplexity["weight_bits"].get<double>() < 32.0);
  CHECK(!run_json(place.perplexity()).contains("linear_weight_bits"));
}

TEST_CASE("quantizing twice gives the same file, on any number of threads, and a table says what was made") {
  const Workplace place;
  const std::string one = place.quantized("nuq-3", {"--threads", "1"});
  const std::string again = place.path("again.safetensors");
  const std::string table = run_text(place.quantize("nuq-3", again, {"--threads", "3"}));
  CHECK(table.find("model.layers.1.mlp.down_proj") != std::string::npos);
  CHECK(table.find("written to " + again) != std::string::npos);
  CHECK(contents(again) == contents(one));
  CHECK(contents(place.quantized("nuq-3", {"--seed", "2"})) != contents(again));
}

TEST_CASE("a file that is there is replaced only if somebody says so") {
  const Workplace place;
  const std::string out = place.write("out.safetensors", "precious");
  check_failure(place.quantize("nuq-4", out), 2, "--out " + out + " is there already (8 B): --force (-f) replaces it");
  CHECK(contents(out) == "precious");
  for (const char* answer : {"\n", "n\n", ""}) {
    const std::optional<Outcome> kept = run_in_terminal(place.quantize("nuq-4", out), answer);
    if (!kept) break;
    CHECK(kept->exit_code == 1);
    CHECK(kept->out.find("Replace it? [y/N]") != std::string::npos);
    CHECK(contents(out) == "precious");
  }
  if (const std::optional<Outcome> replaced = run_in_terminal(place.quantize("nuq-4", out), "y\n")) {
    CHECK(replaced->exit_code == 0);
    CHECK(replaced->out.find("quantizing 0.1 million weights [") != std::string::npos);
    CHECK(contents(out).size() > 1000);
  } else {
    MESSAGE("skipped: answers, since this system has no terminals for tests");
  }
  run_json(place.quantize("nuq-3", out, {"-f"}));
  CHECK(contents(out).size() > 1000);
}

TEST_CASE("matrices that an interrupted run finished are kept, and the rest gives the same file") {
  const Workplace place(true);
  const std::string whole = place.quantized("nuq-3");
  const std::string out = place.path("out.safetensors");
  const std::filesystem::path partial = leave_partial(place, whole, out, "nuq-3", 5);

  check_failure(place.quantize("nuq-4", out), 1, partial.string() + " holds other work: its scheme is \"nuq-3\"");
  check_failure(place.quantize("nuq-3", out, {"--seed", "2"}), 1, "its seed is 1, not 2");
  check_failure(place.quantize("nuq-3", out, {"--hessian", place.path("text.txt")}), 1, "its hessian is");
  const json resumed = run_json(place.quantize("nuq-3", out));
  for (size_t i = 0; i < kLayers; ++i) CHECK(resumed["layers"][i]["resumed"] == (i < 5));
  CHECK(resumed["layers"][0]["error"].get<double>() > 0.0);
  CHECK(contents(out) == contents(whole));
  CHECK(!std::filesystem::exists(partial));

  leave_partial(place, whole, out, "nuq-3", kLayers);
  std::filesystem::remove(out);
  const json taken_up = run_json(place.quantize("nuq-3", out));
  for (const json& layer : taken_up["layers"]) CHECK(layer["resumed"] == true);
  CHECK(contents(out) == contents(whole));
}

TEST_CASE("what an interrupted run left is refused if it is damaged or nothing of the kind") {
  const Workplace place;
  const std::string whole = place.quantized("nuq-3");
  const std::string out = place.path("out.safetensors");
  const std::filesystem::path partial = leave_partial(place, whole, out, "nuq-3", 2);
  const std::filesystem::path matrix = partial / "model.layers.0.self_attn.k_proj.safetensors";
  std::filesystem::resize_file(matrix, std::filesystem::file_size(matrix) - 1);
  check_failure(place.quantize("nuq-3", out), 1, matrix.string());
  std::filesystem::remove(partial / "options.json");
  check_failure(place.quantize("nuq-3", out), 1, "holds other work");
  CHECK(std::filesystem::exists(matrix));
}

TEST_CASE("an interrupted quantization says so, and leaves what it finished") {
  const Workplace place;
  const std::string out = place.path("out.safetensors");
  const Arguments arguments = place.quantize("tcq-4", out, {"--threads", "1"});
  const std::filesystem::path first = out + ".partial/model.layers.0.self_attn.q_proj.safetensors";
  const Outcome outcome = run_until(arguments, [&] { return std::filesystem::exists(first); });
  if (outcome.exit_code == 0) return;  // it was faster than the signal
  CHECK(outcome.exit_code == 1);
  CHECK(outcome.err.find("interrupted") != std::string::npos);
  CHECK(std::filesystem::exists(first));
  CHECK(!std::filesystem::exists(out));
  CHECK(run_json(arguments)["layers"][0]["resumed"] == true);
}

TEST_CASE("Hessians that do not fit the memory given to them are collected in several runs") {
  const Workplace place(false);
  const auto quantize = [&](const std::string& name, const std::string& memory) {
    Arguments more{"--hessian", place.path("text.txt"), "--hessian-tokens", "256"};
    if (!memory.empty()) more = with(more, {"--hessian-memory", memory});
    return place.quantize("nuq-3", place.path(name.c_str()), more);
  };
  run_json(quantize("at_once", ""));
  run_json(quantize("in_parts", "100KB"));  // a layer's inputs of MLPs take 64 KiB, others 16 KiB
  CHECK(contents(place.path("in_parts")) == contents(place.path("at_once")));
  check_failure(quantize("never", "50KB"), 1,
                "--hessian needs 64.0 KiB for the inputs of model.layers.0.mlp.down_proj, and sums may take 48.8 KiB");
  CHECK(!std::filesystem::exists(place.path("never")));
  check_failure(quantize("never", "much"), 2, "--hessian-memory much");
}

TEST_CASE("codes that a Hessian chose lose less of the outputs than rounding does, and as much as is said") {
  const Workplace place;
  constexpr size_t kHessianTokens = 512;
  std::vector<int32_t> tokens;  // of the letters of text.txt
  for (const char letter : contents(place.path("text.txt")).substr(0, kHessianTokens))
    tokens.push_back(letter - 'a' + 1);
  const MeanProducts hessians = mean_products(place.model(), tokens);

  const kvq::Context context = make_context();
  const llama::Checkpoint checkpoint(place.model());
  const std::vector<llama::LinearLayer> layers = llama::all_linear_layers(llama::load_config(place.model()));
  std::map<std::string, double> totals;
  for (const char* rounding : {"ldlq", "nearest"}) {
    CAPTURE(rounding);
    const std::string out = place.path(rounding);
    const json result = run_json(place.quantize("nuq-3", out,
                                                {"--hessian", place.path("text.txt"), "--hessian-tokens",
                                                 std::to_string(kHessianTokens), "--rounding", rounding}));
    check_numbers(result, {"proxy_error"});
    const llama::MappedFile file(out);
    for (size_t i = 0; i < kLayers; ++i) {
      CAPTURE(layers[i].name);
      const std::vector<float> weights = llama::to_float(checkpoint.at(layers[i].name + ".weight"));
      const std::vector<float> decoded = dequantize(kvq::Matrix::load(context, file.bytes(), layers[i].name));
      std::vector<double> errors(weights.size());
      for (size_t j = 0; j < weights.size(); ++j) errors[j] = double{decoded[j]} - weights[j];
      const std::vector<double>& hessian = hessians.at({layers[i].layer, layers[i].input});
      const auto in = static_cast<size_t>(layers[i].in);
      const double expected = product_with(errors, hessian, in) /
                              product_with(std::vector<double>(weights.begin(), weights.end()), hessian, in);
      CHECK(result["layers"][i]["proxy_error"].get<double>() == doctest::Approx(expected).epsilon(0.01));
      totals[rounding] += expected;
    }
  }
  CHECK(totals["ldlq"] < 0.9 * totals["nearest"]);
}

TEST_CASE("packed weights compose with caches in few bits, in every command that runs a model") {
  const ScratchDirectory scratch;
  const std::string weights = (scratch.path() / "nuq-5.safetensors").string();
  run_json({"quantize", "--model", kModel, "--scheme", "nuq-5", "--out", weights});
  const auto packed = [&weights](const Arguments& arguments, const std::string& kv) {
    return run_json(with(arguments, {"--weights", weights, "--kv", kv}));
  };
  const Arguments measure = perplexity({"--context", "256", "--windows", "2"});
  const double plain = run_json(measure)["perplexity"];
  const json fp16 = packed(measure, "fp16");
  const json int4 = packed(measure, "int4");
  CHECK(fp16["perplexity"].get<double>() == doctest::Approx(plain).epsilon(0.05));
  CHECK(int4["perplexity"].get<double>() == doctest::Approx(plain).epsilon(0.05));
  CHECK(int4["perplexity"] != fp16["perplexity"]);
  CHECK(int4["linear_weight_bits"] == fp16["linear_weight_bits"]);
  CHECK(int4["kv_bits"] < fp16["kv_bits"]);
  // Codebooks belong to the model, however its weights are written.
  CHECK(packed(measure, "commvq:" + kModel + "/commvq-2bit.safetensors")["perplexity"].get<double>() ==
        doctest::Approx(plain).epsilon(0.08));
  CHECK(packed(needle({"--context", "256", "--samples", "2"}), "int4")["accuracy"] == 1.0);
  const json text = packed({"generate", "--model", kModel, "--prompt", "He", "--max-tokens", "3"}, "int4");
  CHECK(text["linear_weight_bits"] == fp16["linear_weight_bits"]);
}

TEST_CASE("weights that cannot be used are refused with the file's name") {
  const Workplace place;
  const std::string file = place.quantized("nuq-4");
  const std::string bytes = contents(file);
  const auto refused = [&](const std::string& weights, const std::string& reason) {
    check_failure(place.perplexity({"--weights", weights}), 1, reason);
  };
  refused(place.path("absent"), place.path("absent"));
  refused(place.path("text.txt"), place.path("text.txt"));
  refused(place.write("short", bytes.substr(0, bytes.size() - 1)), place.path("short"));
  check_failure(perplexity({"--weights", file}), 1, file + " was not made from the model in " + kModel);
  const Workplace other(true);
  refused(other.quantized("nuq-4"), "was not made from the model in " + place.model());
  // An ordinary checkpoint of the same model is what it is.
  CHECK(place.perplexity_with(place.path("model.safetensors")) ==
        run_json(place.perplexity())["perplexity"].get<double>());
}

TEST_CASE("a quantization that cannot be done is refused before it begins, and leaves nothing behind") {
  const Workplace place;
  const std::string out = place.path("out.safetensors");
  const std::string model = place.model();
  check_failure({"quantize", "--scheme", "nuq-4", "--out", out}, 2, "--model");
  check_failure({"quantize", "--model", model, "--out", out}, 2, "--scheme");
  check_failure({"quantize", "--model", model, "--scheme", "nuq-4"}, 2, "--out");
  check_failure(place.quantize("nuq-7", out), 2, "--scheme nuq-7: not one of nuq-1, nuq-2,");
  check_failure(place.quantize("int4", out), 2, "no scheme of weights: write vq-4, which is nearest");
  check_failure(place.quantize("nuq-9", out), 2, "fp16");
  check_failure(place.quantize("nuq-4", out, {"--damping", "2"}), 2, "--damping");
  check_failure(place.quantize("nuq-4", out, {"--rounding", "up"}), 2, "--rounding");
  check_failure(place.quantize("nuq-4", out, {"--threads", "0"}), 2, "--threads");
  check_failure(place.quantize("nuq-4", out, {"--hessian-tokens", "0"}), 2, "--hessian-tokens");
  check_failure(place.quantize("nuq-4", out, {"--hessian", place.path("absent")}), 1, place.path("absent"));
  check_failure(place.quantize("nuq-4", out, {"--hessian", place.write("empty.txt", "")}), 1, "empty");
  check_failure(place.quantize("nuq-4", place.path("absent/out")), 1, "cannot write");
  check_failure(place.quantize("nuq-4", model), 1, "is a directory");
  check_failure({"quantize", "--model", place.path("absent"), "--scheme", "nuq-4", "--out", out}, 1, "config.json");
  // 24 inputs
  const LetterModel narrow;
  check_failure({"quantize", "--model", narrow.model(), "--scheme", "nuq-4", "--out", out}, 1,
                "model.layers.0.self_attn.q_proj");
  // What is packed already
  const std::string packed = place.quantized("nuq-4");
  std::filesystem::remove(model + "/model.safetensors");  // libstdc++ for Windows refuses to overwrite
  std::filesystem::copy_file(packed, model + "/model.safetensors");
  check_failure(place.quantize("nuq-2", out), 1, "q_proj.weight' is missing");
  CHECK(!std::filesystem::exists(out));
  CHECK(!std::filesystem::exists(out + ".partial"));
}

}  // namespace quantize_test
