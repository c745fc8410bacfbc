#include "commands/demo_weights.h"

#include <nlohmann/json.hpp>

#include "options/spec.h"
#include "terminal/output.h"
#include "terminal/output_file.h"
#include "terminal/table.h"
#include "terminal/temporary_directory.h"
#include "terminal/text_file.h"
#include "train/quantization.h"

namespace cli {
namespace {

/// The second half of the model's sample, whose beginning is scored.
std::filesystem::path write_calibration_text(const std::filesystem::path& model,
                                             const std::filesystem::path& directory) {
  const std::string text = read_corpus(model / "sample.txt");
  std::filesystem::path file = directory / "calibration.txt";
  write_file(file, std::as_bytes(std::span(text).subspan(text.size() / 2)));
  return file;
}

PerplexityResult measure_with(Engine& engine, const std::string& kv, std::span<const int32_t> tokens,
                              const PerplexityOptions& options) {
  Progress progress("quality", int64_t{options.windows} * options.context);
  const Spec format = load_spec(engine, kv);
  return measure_perplexity(engine, format, tokens, options, progress);
}

double rise_percent(const WeightsRow& row, const WeightsRow& plain) {
  return 100.0 * (row.perplexity.perplexity / plain.perplexity.perplexity - 1.0);
}

}  // namespace

std::vector<WeightsRow> WeightsDemo::measure(std::span<const int32_t> tokens, const std::string& kv) const {
  const TemporaryDirectory scratch;
  ComputeOptions quantizing = compute;
  quantizing.device = "cpu";  // where inputs of linear layers can be observed
  const std::filesystem::path text = write_calibration_text(model, scratch.path());
  std::vector<WeightsRow> rows;
  for (const std::string& scheme : schemes) {
    const std::filesystem::path file = scratch.path() / (scheme + ".safetensors");
    const QuantizedModel quantized = quantize_model({.model = model.string(),
                                                     .scheme = scheme,
                                                     .hessian_texts = {text.string()},
                                                     .hessian_tokens = hessian_tokens,
                                                     .out = file,
                                                     .compute = quantizing});
    Engine engine(model, compute, file.string());
    const auto row = [&](const std::string& cache) {
      return WeightsRow{.scheme = scheme,
                        .kv = cache,
                        .linear_bits = engine.model.weights().linear_bits,
                        .bits = engine.model.weights().bits,
                        .bytes = quantized.bytes,
                        .seconds = quantized.seconds(),
                        .perplexity = measure_with(engine, cache, tokens, perplexity)};
    };
    rows.push_back(row("fp16"));
    if (rows.size() == 1) rows.push_back(row(kv));
    std::filesystem::remove(file);
  }
  return rows;
}

std::string weights_text(const std::vector<WeightsRow>& rows, const WeightsRow& plain) {
  Table table({"weights", "KV format", "bits per\nweight", "model\nfile", "times\nsmaller", "perplexity",
               "rise over\nFP16", "seconds\nto quantize"});
  const auto add = [&](const WeightsRow& row, const std::string& rise, const std::string& seconds) {
    table.add_row({row.scheme, row.kv, number_text(row.linear_bits, 2), bytes_text(row.bytes),
                   number_text(static_cast<double>(plain.bytes) / static_cast<double>(row.bytes), 2),
                   number_text(row.perplexity.perplexity, 3), rise, seconds});
  };
  add(plain, "", "");
  for (const WeightsRow& row : rows) add(row, signed_percent(rise_percent(row, plain)), number_text(row.seconds, 1));
  return table.text();
}

nlohmann::ordered_json weights_json(const std::vector<WeightsRow>& rows, const WeightsRow& plain) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const WeightsRow& row : rows) {
    nlohmann::ordered_json object;
    object["scheme"] = row.scheme;
    object["kv"] = row.kv;
    object["linear_weight_bits"] = row.linear_bits;
    object["weight_bits"] = row.bits;
    object["bytes"] = row.bytes;
    object["perplexity"] = row.perplexity.perplexity;
    object["rise_percent"] = rise_percent(row, plain);
    object["seconds"] = row.seconds;
    list.push_back(std::move(object));
  }
  return list;
}

}  // namespace cli
