// Models whose linear layers are packed, and what they read.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "kvq.hpp"
#include "letter_model.h"
#include "llama/cpu_device.h"
#include "llama/cuda_module.h"
#include "llama/error.h"
#include "llama/hessians.h"
#include "llama/model.h"
#include "llama/safetensors.h"
#include "llama/weights.h"
#include "packed_layers.h"
#include "runs.h"
#include "support/device.h"
#include "support/scratch_directory.h"
#include "tiny_model.h"

namespace packed_model_test {
namespace {

using doctest::Contains;

kvq::Matrix quantize(kvq_context* context, const llama::Checkpoint& checkpoint, const llama::LinearLayer& layer,
                     const std::string& scheme) {
  const std::vector<float> bias =
      layer.bias ? llama::to_float(checkpoint.at(layer.name + ".bias")) : std::vector<float>();
  auto options = kvq::initialised<qp_quantize_options>();
  options.scheme = scheme.c_str();
  options.bias = layer.bias ? bias.data() : nullptr;
  return kvq::Matrix::quantize(context, options, llama::to_float(checkpoint.at(layer.name + ".weight")), layer.out,
                               layer.in);
}

/// A checkpoint some of whose layers are packed, in a file of its own, and the same model in float64 on what their
/// codes mean.
class PartlyPacked {
 public:
  /// \param schemes  of the layers in turn, again and again; empty: left as it is.
  PartlyPacked(const TinyLayout& layout, const std::vector<std::string>& schemes) : decoded_(layout) {
    TinyModel(layout).write(directory_);
    const llama::Checkpoint checkpoint(directory_.path());
    const llama::ModelConfig config = llama::load_config(directory_.path());
    auto kept = checkpoint.tensors();
    llama::SafetensorsContent content;
    std::vector<std::vector<std::byte>> files;
    std::vector<llama::SafetensorsContent> contents;
    size_t turn = 0;
    for (const llama::LinearLayer& layer : llama::all_linear_layers(config)) {
      const std::string& scheme = schemes[turn++ % schemes.size()];
      if (scheme.empty()) continue;
      const kvq::Matrix matrix = quantize(context_, checkpoint, layer, scheme);
      decoded_.replace(layer.name + ".weight", dequantize(matrix));
      bits_ += matrix.describe().bits * static_cast<double>(layer.out * layer.in);
      weights_ += static_cast<double>(layer.out * layer.in);
      kept.erase(layer.name + ".weight");
      kept.erase(layer.name + ".bias");
      files.push_back(matrix.save(layer.name));
      const llama::SafetensorsContent& packed = contents.emplace_back(llama::read_safetensors(files.back(), "matrix"));
      std::ranges::copy(packed.tensors, std::back_inserter(content.tensors));
      content.metadata.insert(packed.metadata.begin(), packed.metadata.end());
    }
    for (const auto& each : kept) content.tensors.push_back(*each.second);
    std::array<char, 17> fingerprint;
    std::snprintf(fingerprint.data(), fingerprint.size(), "%016llx",
                  static_cast<unsigned long long>(checkpoint.fingerprint()));
    content.metadata[llama::kFingerprintField] = fingerprint.data();
    write(content);
  }

  void write(const llama::SafetensorsContent& content) {
    std::string bytes;
    llama::write_safetensors(content, [&](std::span<const std::byte> piece) {
      bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    });
    // A new one: what is mapped cannot be replaced on every system.
    file_ = directory_.write("packed-" + std::to_string(writes_++) + ".safetensors", bytes);
  }

  llama::Model model(int32_t threads) const {
    return llama::Model(directory_.path(), std::make_shared<llama::ThreadPool>(threads), nullptr,
                        llama::WeightsFile{file_, context_});
  }
  /// On the GPU of `context`.
  llama::Model model_on_gpu(kvq_context* context) const {
    return llama::Model(directory_.path(), std::make_shared<llama::ThreadPool>(1), llama::make_cuda_device(0),
                        llama::WeightsFile{file_, context});
  }
  const kvq::Context& context() const { return context_; }
  const std::filesystem::path& file() const { return file_; }
  const std::filesystem::path& directory() const { return directory_.path(); }
  std::vector<std::vector<double>> logits(const std::vector<int32_t>& tokens) const { return decoded_.logits(tokens); }
  /// One packed weight.
  double bits() const { return bits_ / weights_; }

 private:
  ScratchDirectory directory_;
  kvq::Context context_ = make_context();
  std::filesystem::path file_;
  int writes_ = 0;
  TinyModel decoded_;
  double bits_ = 0.0;
  double weights_ = 0.0;
};

/// Norm of the difference, over the expected norm.
double relative_norm(const std::vector<float>& result, const std::vector<std::vector<double>>& expected) {
  double difference = 0.0;
  double norm = 0.0;
  size_t i = 0;
  for (const auto& row : expected) {
    for (const double value : row) {
      difference += std::pow(static_cast<double>(result.at(i++)) - value, 2);
      norm += value * value;
    }
  }
  return std::sqrt(difference / norm);
}

}  // namespace

TEST_CASE("a model on packed layers computes what their codes mean, whichever of its layers are packed") {
  const std::vector<int32_t> tokens = random_tokens(kTokens, TinyModel::kVocabulary);
  struct Case {
    std::vector<std::string> schemes;
    // Inputs of packed layers but fp16 are rounded to 8 bits, which takes 0.6 % of a product; over two layers that
    // grows.
    double tolerance;
  };
  for (const bool biases : {false, true}) {
    for (const Case& each : {Case{{"fp16"}, 2e-3}, Case{{"nuq-4"}, 6e-2}, Case{{"nuq-8", "", "nuq-4", "fp16"}, 6e-2}}) {
      CAPTURE(biases);
      CAPTURE(each.schemes.front());
      const PartlyPacked packed(packable_layout(biases), each.schemes);
      llama::Model model = packed.model(2);
      CHECK(model.weights().linear_bits == doctest::Approx(packed.bits()));
      const std::vector<std::vector<double>> expected = packed.logits(tokens);
      for (const size_t chunk : {size_t{1}, size_t{32}, kTokens}) {
        CAPTURE(chunk);
        llama::Session session(model, packed.context(), nullptr);
        CHECK(relative_norm(run_in_chunks(session, tokens, chunk), expected) < each.tolerance);
      }
    }
  }
}

TEST_CASE("weights in few bits are far enough from those they were made of for the test above to tell") {
  const std::vector<int32_t> tokens = random_tokens(kTokens, TinyModel::kVocabulary);
  const PartlyPacked packed(packable_layout(false), {"nuq-4"});
  const std::vector<std::vector<double>> original = TinyModel(packable_layout(false)).logits(tokens);
  llama::Model model = packed.model(1);
  llama::Session session(model, packed.context(), nullptr);
  CHECK(relative_norm(run_in_chunks(session, tokens, 32), original) > 0.3);
}

// Inputs and attention are rounded to FP16 there, not to 8 bits.
TEST_CASE("a model on packed layers computes on the GPU what their codes mean, biases and sums included") {
  const std::string reason = kvq_test::why_no_cuda();
  if (!reason.empty()) {
    MESSAGE("skipped: " << reason);
    return;
  }
  const std::vector<int32_t> tokens = random_tokens(kTokens, TinyModel::kVocabulary);
  const std::vector<std::vector<std::string>> all_schemes = {{"fp16"},     {"nuq-4"}, {"vq-3"},
                                                             {"tcq-2.75"}, {"tcx-2"}, {"nuq-8", "", "tcx-3", "fp16"}};
  const kvq::Context gpu = make_context(KVQ_DEVICE_CUDA);
  for (const bool biases : {false, true}) {
    for (const std::vector<std::string>& schemes : all_schemes) {
      CAPTURE(biases);
      CAPTURE(schemes.front());
      const PartlyPacked packed(packable_layout(biases), schemes);
      llama::Model model = packed.model_on_gpu(gpu);
      CHECK(model.weights().linear_bits == doctest::Approx(packed.bits()));
      const std::vector<std::vector<double>> expected = packed.logits(tokens);
      std::vector<float> flat;
      for (const std::vector<double>& row : expected) flat.insert(flat.end(), row.begin(), row.end());
      for (const size_t chunk : {size_t{1}, size_t{32}, kTokens}) {
        CAPTURE(chunk);
        llama::Session session(model, gpu, nullptr);
        const std::vector<float> logits = run_in_chunks(session, tokens, chunk);
        CHECK(relative_norm(logits, expected) < 1e-2);
        CHECK(perplexity(logits, tokens) == doctest::Approx(perplexity(flat, tokens)).epsilon(1e-3));
      }
    }
  }
}

TEST_CASE("packed weights in a context on another device than the model's are refused") {
  const std::string reason = kvq_test::why_no_cuda();
  if (!reason.empty()) {
    MESSAGE("skipped: " << reason);
    return;
  }
  const PartlyPacked packed(packable_layout(false), {"nuq-4"});
  CHECK_THROWS_WITH_AS(packed.model_on_gpu(packed.context()),
                       Contains("the model is on the GPU, the context on the CPU"), llama::Error);
}

TEST_CASE("packed weights that do not fit the model are refused by name") {
  PartlyPacked packed(packable_layout(true), {"fp16"});
  const llama::SafetensorsFile intact(packed.file());
  const auto refused = [&](const std::string& reason) {
    CHECK_THROWS_WITH_AS(packed.model(1), Contains(reason.c_str()), llama::Error);
  };
  const std::string gate = "model.layers.1.mlp.gate_proj";
  llama::SafetensorsContent content{intact.tensors(), intact.metadata()};
  content.metadata[llama::kFingerprintField] = "12";
  packed.write(content);
  refused("was not made from the model in " + packed.directory().string());
  content.metadata[llama::kFingerprintField] = "twelve";
  packed.write(content);
  refused("'model_fingerprint' is 'twelve'");
  content.metadata = intact.metadata();
  std::erase_if(content.tensors, [&](const llama::TensorView& tensor) { return tensor.name == gate + ".bias"; });
  packed.write(content);
  refused("matrix " + gate + " has no bias");
  content.metadata.erase(gate + ".scheme");
  packed.write(content);
  refused(gate + ".weight' is missing");

  // The file alone is enough, but it has to fit config.json.
  const ScratchDirectory other;
  TinyLayout wider = packable_layout(true);
  wider.intermediate = 192;
  TinyModel(wider).write(other);
  std::filesystem::remove(other.path() / "model.safetensors");
  packed.write({intact.tensors(), intact.metadata()});
  CHECK_THROWS_WITH_AS(llama::Model(other.path(), std::make_shared<llama::ThreadPool>(1), nullptr,
                                    llama::WeightsFile{packed.file(), packed.context()}),
                       Contains("gate_proj has shape [128, 64], config.json asks for [192, 64]"), llama::Error);
  std::filesystem::remove(packed.directory() / "model.safetensors");
  CHECK(packed.model(1).weights().linear_bits == 16.0);
}

TEST_CASE("observed inputs are what linear layers multiply, and their mean products are symmetric") {
  const ScratchDirectory directory;
  const TinyLayout layout = packable_layout(false);
  TinyModel(layout).write(directory);
  const kvq::Context context = make_context();
  llama::Model model(directory.path(), 1);
  const llama::Checkpoint checkpoint(directory.path());
  const std::vector<llama::LinearLayer> layers = llama::all_linear_layers(model.config());
  const std::vector<int32_t> tokens = random_tokens(kTokens, TinyModel::kVocabulary);

  std::map<std::pair<int32_t, llama::LinearInput>, std::vector<float>> inputs;
  std::vector<float> values;
  std::vector<float> attended;
  llama::Hessians hessians(model.device(), layers);
  llama::Session session(model, context, nullptr);
  session.observe_inputs([&](int32_t layer, llama::LinearInput which, std::span<const float> x) {
    std::ranges::copy(x, std::back_inserter(inputs[{layer, which}]));
    hessians.add(layer, which, x);
  });
  session.observe([&](int32_t layer, const llama::ObservedAttention& seen) {
    if (layer != 1) return;
    values.insert(values.end(), seen.v, seen.v + seen.n * 32);
    attended.insert(attended.end(), seen.attended, seen.attended + seen.n * 64);
  });
  run_in_chunks(session, tokens, 32);

  CHECK(inputs.size() == 2 * 4);
  CHECK(inputs[{1, llama::LinearInput::kOutput}] == attended);
  const std::vector<float>& x = inputs[{1, llama::LinearInput::kAttention}];
  const std::vector<float> weight = llama::to_float(checkpoint.at("model.layers.1.self_attn.v_proj.weight"));
  REQUIRE(x.size() == kTokens * 64);
  REQUIRE(values.size() == kTokens * 32);
  for (size_t i = 0; i < values.size(); ++i) {
    double sum = 0.0;
    for (size_t j = 0; j < 64; ++j) sum += double{x[i / 32 * 64 + j]} * weight[i % 32 * 64 + j];
    CHECK(std::abs(values[i] - sum) < 1e-4);
  }

  CHECK(llama::Hessians::bytes(layers) == 2 * 4 * (3 * 64 * 64 + 128 * 128));
  for (const llama::LinearLayer& layer : layers) {
    CAPTURE(layer.name);
    const std::vector<float>& seen = inputs[{layer.layer, layer.input}];
    const auto in = static_cast<size_t>(layer.in);
    REQUIRE(seen.size() == kTokens * in);
    const std::span<const float> mean = hessians.of(layer);
    double worst = 0.0;
    double largest = 0.0;
    for (size_t i = 0; i < in; ++i) {
      for (size_t j = 0; j < in; ++j) {
        double sum = 0.0;
        for (size_t row = 0; row < kTokens; ++row) sum += double{seen[row * in + i]} * seen[row * in + j];
        worst = std::max(worst, std::abs(sum / kTokens - mean[i * in + j]));
        largest = std::max(largest, std::abs(sum / kTokens));
        CHECK(mean[i * in + j] == mean[j * in + i]);
      }
    }
    CHECK(worst < 1e-5 * largest);
  }
}

}  // namespace packed_model_test
