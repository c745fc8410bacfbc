#include "train/quantization.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <system_error>

#include "bench/timing.h"
#include "llama/error.h"
#include "llama/json_document.h"
#include "llama/mapped_file.h"
#include "llama/safetensors.h"
#include "options/spec.h"
#include "terminal/files.h"
#include "terminal/output.h"
#include "terminal/progress.h"
#include "train/training.h"

namespace cli {
namespace {

constexpr const char* kOptionsFile = "options.json";

std::string value_text(const nlohmann::json& object, const std::string& key) {
  return object.contains(key) ? object[key].dump() : "not given";
}

void check_same(const nlohmann::json& kept, const nlohmann::json& wanted, const std::filesystem::path& directory) {
  for (const auto& [key, value] : wanted.items()) {
    if (kept.contains(key) && kept[key] == value) continue;
    throw llama::Error(directory.string() + " holds other work: its " + key + " is " + value_text(kept, key) +
                       ", not " + value.dump() + "; remove it or choose another --out");
  }
}

/// The directory where a quantization keeps finished matrices until all are, a file each.
class PartialMatrices {
 public:
  /// Make the directory, or take up what an earlier run left there; an Error if that was made with other options.
  /// \param made_with  what the matrices depend on: an object of strings and numbers.
  PartialMatrices(std::filesystem::path directory, const Json& made_with) : directory_(std::move(directory)) {
    std::error_code failure;
    std::filesystem::create_directory(directory_, failure);
    if (failure) throw llama::Error("cannot make " + directory_.string() + ": " + failure.message());
    const std::filesystem::path options = directory_ / kOptionsFile;
    if (std::filesystem::exists(options, failure)) {
      check_same(llama::read_json(options), made_with, directory_);
      return;
    }
    if (!is_empty()) throw llama::Error(directory_.string() + " holds other work; remove it or choose another --out");
    write_file(options, made_with.dump(2));
  }

  std::filesystem::path file(const std::string& name) const {
    return directory_ / llama::path_of(name + ".safetensors");
  }
  bool holds(const std::string& name) const { return llama::is_present(file(name)); }
  bool is_empty() const {
    std::error_code ignored;
    const std::filesystem::directory_iterator files(directory_, ignored);
    return std::all_of(begin(files), end(files),
                       [](const auto& each) { return each.path().filename() == kOptionsFile; });
  }
  void remove(std::span<const llama::LinearLayer> layers) const {
    std::error_code ignored;
    for (const llama::LinearLayer& layer : layers) std::filesystem::remove(file(layer.name), ignored);
    std::filesystem::remove(directory_ / kOptionsFile, ignored);
    std::filesystem::remove(directory_, ignored);
  }

 private:
  std::filesystem::path directory_;
};

using Schemes = std::map<std::string, std::string>;

Schemes schemes_of(const Quantization& quantization, const std::vector<llama::LinearLayer>& layers) {
  Schemes schemes;
  if (!quantization.scheme.empty()) {
    for (const llama::LinearLayer& layer : layers) schemes[layer.name] = quantization.scheme;
  }
  if (quantization.plan.empty()) return schemes;
  const kvq::Context context = make_context(quantization.compute);
  const kvq::Plan plan = load_plan(context, quantization.plan);
  for (int32_t i = 0; i < plan.describe().n_matrices; ++i) {
    const kvq_plan_matrix_info matrix = plan.describe_matrix(i);
    if (std::ranges::none_of(layers, [&](const llama::LinearLayer& layer) { return layer.name == matrix.name; })) {
      throw llama::Error(quantization.plan + " is for another model: it names " + matrix.name + ", which " +
                         quantization.model + " lacks");
    }
    schemes[matrix.name] = matrix.scheme;
  }
  for (const llama::LinearLayer& layer : layers) {
    if (schemes.contains(layer.name)) continue;
    throw llama::Error(quantization.plan + " has no scheme for " + layer.name +
                       "; --scheme gives those it leaves out one");
  }
  return schemes;
}

double sum_of_squares(std::span<const float> numbers) {
  double sum = 0.0;
  for (const float number : numbers) sum += double{number} * number;
  return sum;
}

kvq::Matrix quantize_layer(kvq_context* context, const llama::Checkpoint& checkpoint, const llama::LinearLayer& layer,
                           std::span<const float> weights, qp_quantize_options options, TrainingBar& bar) {
  std::vector<float> bias;
  if (layer.bias) bias = llama::to_float(checkpoint.at(layer.name + ".bias", {layer.out}));
  options.bias = layer.bias ? bias.data() : nullptr;
  options.progress = TrainingBar::hook;
  options.progress_user = &bar;
  try {
    return kvq::Matrix::quantize(context, options, weights, layer.out, layer.in);
  } catch (const kvq::Error& error) {
    throw llama::Error(layer.name + ": " + error.what());
  }
}

class Quantizer {
 public:
  Quantizer(const Quantization& quantization, const Schemes& schemes, const llama::Checkpoint& checkpoint,
            const PartialMatrices& partial, HessianCollection* hessians)
      : quantization_(quantization),
        schemes_(schemes),
        checkpoint_(checkpoint),
        partial_(partial),
        hessians_(hessians),
        context_(make_context(quantization.compute)) {}

  QuantizedLayer run(const llama::LinearLayer& layer, Progress& progress) const {
    const std::vector<float> weights = llama::to_float(checkpoint_.at(layer.name + ".weight", {layer.out, layer.in}));
    TrainingBar bar(progress, layer.out * layer.in);
    const std::string& scheme = schemes_.at(layer.name);
    QuantizedLayer result{.layer = layer, .scheme = scheme, .squares = sum_of_squares(weights)};
    kvq::Matrix matrix = nullptr;
    if (partial_.holds(layer.name)) {
      matrix = load(layer.name);
    } else {
      const Stopwatch watch;
      const std::span<const float> hessian = hessians_ != nullptr ? hessians_->of(layer) : std::span<const float>();
      matrix = quantize_layer(context_, checkpoint_, layer, weights, options(scheme, hessian), bar);
      result.seconds = watch.seconds();
      write_file(partial_.file(layer.name), matrix.save(layer.name));
    }
    const qp_matrix_info info = matrix.describe();
    result.bits = info.bits;
    result.error = info.error;
    result.proxy_error = info.proxy_error;
    bar.finish();
    return result;
  }

 private:
  qp_quantize_options options(const std::string& scheme, std::span<const float> hessian) const {
    auto options = kvq::initialised<qp_quantize_options>();
    options.scheme = scheme.c_str();
    options.seed = quantization_.seed;
    options.damping = quantization_.damping;
    options.rounding = quantization_.rounding == "nearest" ? QP_ROUNDING_NEAREST : QP_ROUNDING_LDLQ;
    options.hessian = hessian.empty() ? nullptr : hessian.data();
    return options;
  }

  kvq::Matrix load(const std::string& name) const {
    const std::filesystem::path path = partial_.file(name);
    try {
      return kvq::Matrix::load(context_, llama::MappedFile(path).bytes(), name);
    } catch (const kvq::Error& error) {
      throw llama::Error(path.string() + ": " + error.what() + "; remove it to do this matrix again");
    }
  }

  const Quantization& quantization_;
  const Schemes& schemes_;
  const llama::Checkpoint& checkpoint_;
  const PartialMatrices& partial_;
  HessianCollection* hessians_;
  kvq::Context context_;
};

std::vector<QuantizedLayer> quantize_layers(const Quantizer& quantizer, std::span<const llama::LinearLayer> layers) {
  int64_t weights = 0;
  for (const llama::LinearLayer& layer : layers) weights += layer.out * layer.in;
  Progress progress("quantizing " + number_text(1e-6 * static_cast<double>(weights), 1) + " million weights", weights,
                    std::chrono::milliseconds(0));
  std::vector<QuantizedLayer> results;
  for (const llama::LinearLayer& layer : layers) {
    Interrupt::check();
    results.push_back(quantizer.run(layer, progress));
  }
  return results;
}

void write_model(const std::filesystem::path& out, const llama::Checkpoint& checkpoint,
                 const std::vector<llama::LinearLayer>& layers, const PartialMatrices& partial) {
  llama::SafetensorsContent content;
  auto kept = checkpoint.tensors();
  std::vector<llama::SafetensorsFile> matrices;
  for (const llama::LinearLayer& layer : layers) {
    kept.erase(layer.name + ".weight");
    kept.erase(layer.name + ".bias");
    const llama::SafetensorsFile& matrix = matrices.emplace_back(partial.file(layer.name));
    content.tensors.insert(content.tensors.end(), matrix.tensors().begin(), matrix.tensors().end());
    content.metadata.insert(matrix.metadata().begin(), matrix.metadata().end());
  }
  for (const auto& each : kept) content.tensors.push_back(*each.second);
  content.metadata[llama::kFingerprintField] = hexadecimal(checkpoint.fingerprint());
  OutputFile file(out);
  llama::write_safetensors(content, [&file](std::span<const std::byte> bytes) { file.write(bytes); });
  file.finish();
}

Json made_with(const Quantization& quantization, const Schemes& schemes, uint64_t fingerprint,
               const std::string& note) {
  const Json scheme = quantization.plan.empty() ? Json(quantization.scheme) : Json(schemes);
  return {{"model", hexadecimal(fingerprint)}, {"scheme", scheme},
          {"seed", quantization.seed},         {"hessian", note},
          {"rounding", quantization.rounding}, {"damping", quantization.damping},
          {"version", kvq_version_string()}};
}

QuantizedModel quantize(const Quantization& quantization, const Schemes& schemes, const PartialMatrices& partial,
                        const llama::Checkpoint& checkpoint, const std::vector<llama::LinearLayer>& layers,
                        const CalibrationTexts& texts) {
  const auto is_to_do = [&partial](const llama::LinearLayer& layer) { return !partial.holds(layer.name); };
  std::optional<HessianCollection> hessians;
  std::vector<std::span<const llama::LinearLayer>> runs{layers};
  if (!texts.windows.empty() && std::ranges::any_of(layers, is_to_do)) {
    hessians.emplace(quantization.model, quantization.compute, texts.windows, quantization.hessian_bytes, is_to_do);
    runs = hessians->runs(layers);
  }
  const Quantizer quantizer(quantization, schemes, checkpoint, partial, hessians ? &*hessians : nullptr);
  QuantizedModel result{.layers = {}, .note = texts.note};
  for (size_t i = 0; i < runs.size(); ++i) {
    const std::string number = runs.size() == 1 ? "" : std::to_string(i + 1) + " of " + std::to_string(runs.size());
    if (hessians) hessians->collect(runs[i], number.empty() ? "inputs" : "inputs, part " + number);
    std::ranges::move(quantize_layers(quantizer, runs[i]), std::back_inserter(result.layers));
  }
  write_model(quantization.out, checkpoint, layers, partial);
  partial.remove(layers);
  result.bytes = std::filesystem::file_size(quantization.out);
  return result;
}

CalibrationTexts hessian_texts(const Quantization& quantization, const llama::ModelConfig& config) {
  if (quantization.hessian_texts.empty()) return {};
  const std::vector<std::string> contents = read_corpora(quantization.hessian_texts);
  const llama::Tokenizer tokenizer(llama::path_of(quantization.model) / "tokenizer.json");
  return {quantization.hessian_texts, contents, tokenizer, config, quantization.hessian_tokens};
}

double weighted_mean(const std::vector<QuantizedLayer>& layers, double QuantizedLayer::*value) {
  double sum = 0.0;
  double weights = 0.0;
  for (const QuantizedLayer& layer : layers) {
    sum += layer.*value * layer.weights();
    weights += layer.weights();
  }
  return sum / weights;
}

}  // namespace

double QuantizedModel::bits() const { return weighted_mean(layers, &QuantizedLayer::bits); }
double QuantizedModel::proxy_error() const { return weighted_mean(layers, &QuantizedLayer::proxy_error); }

double QuantizedModel::error() const {
  double lost = 0.0;
  double squares = 0.0;
  for (const QuantizedLayer& layer : layers) {
    lost += layer.error * layer.squares;
    squares += layer.squares;
  }
  return squares > 0.0 ? lost / squares : 0.0;
}

double QuantizedModel::seconds() const {
  double sum = 0.0;
  for (const QuantizedLayer& layer : layers) sum += std::max(layer.seconds, 0.0);
  return sum;
}

double QuantizedModel::weights_per_second() const {
  double weights = 0.0;
  for (const QuantizedLayer& layer : layers) weights += layer.seconds > 0.0 ? layer.weights() : 0.0;
  return weights > 0.0 ? weights / seconds() : 0.0;
}

QuantizedModel quantize_model(const Quantization& quantization) {
  const llama::ModelConfig config = llama::load_config(llama::path_of(quantization.model));
  const llama::Checkpoint checkpoint(llama::path_of(quantization.model));
  const std::vector<llama::LinearLayer> layers = llama::all_linear_layers(config);
  const CalibrationTexts texts = hessian_texts(quantization, config);
  const Schemes schemes = schemes_of(quantization, layers);
  const PartialMatrices partial(quantization.partial(),
                                made_with(quantization, schemes, checkpoint.fingerprint(), texts.note));
  const Interrupt interrupt;
  try {
    return quantize(quantization, schemes, partial, checkpoint, layers, texts);
  } catch (const std::runtime_error&) {
    if (partial.is_empty()) partial.remove(layers);
    Interrupt::check();
    throw;
  }
}

}  // namespace cli
