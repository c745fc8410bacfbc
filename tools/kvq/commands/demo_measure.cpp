#include "commands/demo.h"

#include <algorithm>

#include "bench/bench.h"
#include "terminal/files.h"
#include "train/quantization.h"

namespace cli {
namespace {

/// As load_layer_spec, but for codebooks, which would take longer to train than all else to time.
Spec speed_spec(const kvq::Context& context, const std::string& format, const LayerShape& layer) {
  const auto of_bits = [&](int32_t bits) {
    return Spec{.policy = kvq::Policy::load(context, "{version: 1, keys: commvq, values: commvq}"),
                .codebook = random_codebook(context, bits, layer)};
  };
  if (format == "commvq-1") return of_bits(1);
  if (format == "commvq-2") return of_bits(2);
  return load_layer_spec(context, format, layer);
}

class WatchedAttention {
 public:
  WatchedAttention(ProcessorUse& use, TimedDevice& device, const kvq::Context& context, const std::string& format,
                   const AttentionShape& shape)
      : use_(&use), attention_(device, context, speed_spec(context, format, shape.layer), shape) {}

  double run() {
    return use_->watch([this] { return attention_.run(); });
  }
  uint64_t bytes() const { return attention_.bytes(); }
  double bits() const { return attention_.bits(); }

 private:
  ProcessorUse* use_;
  TimedAttention attention_;
};

/// The second half of the model's sample, whose beginning is scored.
std::filesystem::path write_calibration_text(const std::filesystem::path& model,
                                             const std::filesystem::path& directory) {
  const std::string text = read_corpus(model / "sample.txt");
  std::filesystem::path file = directory / "calibration.txt";
  write_file(file, std::as_bytes(std::span(text).subspan(text.size() / 2)));
  return file;
}

PerplexityResult measure_with(Engine& engine, const std::string& kv, llama::Tokens tokens,
                              const PerplexityOptions& options) {
  Progress progress("quality", int64_t{options.windows} * options.context);
  const Spec format = load_spec(engine, kv);
  return measure_perplexity(engine, format, tokens, options, progress);
}

}  // namespace

AttentionSpeed measure_attention_speed(const ComputeOptions& compute, const AttentionShape& shape,
                                       const std::vector<std::string>& formats) {
  const kvq::Context context = make_context(compute);
  const std::unique_ptr<TimedDevice> device = make_timed_device(compute);
  ProcessorUse use;
  const std::vector<BenchRow> rows = measure_rows("speed", formats, [&](const std::string& format) {
    return WatchedAttention(use, *device, context, format, shape);
  });
  AttentionSpeed speed{.microseconds = {}, .rounds = rows.front().timing.repetitions, .disturbance = {}};
  double best_round = 0.0;
  for (const BenchRow& row : rows) {
    speed.microseconds.push_back(row.timing.min);
    best_round += 1e-6 * row.timing.min;
  }
  // A GPU has a clock of its own, and others seldom use it.
  if (compute.device == "cpu") {
    const double mean_round = use.wall_seconds / (speed.rounds + 1);  // one more to warm up
    speed.disturbance = {.slowdown = mean_round / best_round, .missing_share = use.missing_share(compute.threads)};
  }
  return speed;
}

ReadingSpeed measure_reading_speed(Engine& engine, llama::Tokens tokens, int32_t chunk) {
  constexpr int kChunks = 32;  // one of which may be left alone, however busy the machine is
  const auto size = static_cast<size_t>(chunk);
  llama::Session session(engine.model, engine.context, load_spec(engine, "fp16"));
  const auto read = [&] {
    const Stopwatch watch;
    session.forward(tokens.subspan(static_cast<size_t>(session.length()), size), true);
    return watch.seconds();
  };
  read();  // work space
  ProcessorUse use;
  double best = use.watch(read);
  for (int i = 1; i < kChunks; ++i) best = std::min(best, use.watch(read));
  ReadingSpeed speed{.tokens_per_second = chunk / best, .disturbance = {}};
  if (std::string_view(engine.context.describe().backend) == "cpu") {  // a GPU leaves processors alone
    speed.disturbance = {.slowdown = use.wall_seconds / kChunks / best,
                         .missing_share = use.missing_share(engine.threads->size())};
  }
  return speed;
}

std::vector<WeightsRow> WeightsDemo::measure(llama::Tokens tokens, const std::string& kv) const {
  const TemporaryDirectory scratch;
  ComputeOptions quantizing = compute;
  quantizing.device = "cpu";  // where inputs of linear layers can be observed
  const std::filesystem::path text = write_calibration_text(model, scratch.path());
  std::vector<WeightsRow> rows;
  for (const std::string& scheme : schemes) {
    const std::filesystem::path file = scratch.path() / llama::path_of(scheme + ".safetensors");
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

Figures weights_figures(const std::vector<WeightsRow>& rows, const WeightsRow& plain) {
  Figures figures;
  const auto add = [&](const WeightsRow& row, bool is_plain) {
    const double smaller = static_cast<double>(plain.bytes) / static_cast<double>(row.bytes);
    const double rise = 100.0 * (row.perplexity.perplexity / plain.perplexity.perplexity - 1.0);
    figures.begin_row(!is_plain);
    figures.add("weights", "scheme", row.scheme, row.scheme);
    figures.add("KV format", "kv", row.kv, row.kv);
    figures.add("bits per\nweight", "linear_weight_bits", row.linear_bits, 2);
    figures.add("", "weight_bits", row.bits, 0);
    figures.add("model\nfile", "bytes", row.bytes, bytes_text(row.bytes));
    figures.add("times\nsmaller", "", smaller, 2);
    figures.add("perplexity", "perplexity", row.perplexity.perplexity, 3);
    figures.add("rise over\nFP16", "rise_percent", rise, is_plain ? "" : signed_percent(rise));
    figures.add("seconds\nto quantize", "seconds", row.seconds, is_plain ? "" : number_text(row.seconds, 1));
  };
  add(plain, true);
  for (const WeightsRow& row : rows) add(row, false);
  return figures;
}

}  // namespace cli
