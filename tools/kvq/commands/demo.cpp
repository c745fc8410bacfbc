#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "commands/commands.h"
#include "commands/demo.h"
#include "measure/generation.h"
#include "measure/needle.h"
#include "terminal/files.h"

namespace cli {
namespace {

constexpr const char* kBaseline = "fp16";
constexpr std::array kGainShapes{"gs2", "gt2"};
constexpr const char* kEvicting = "int4+adasnap:256";
constexpr const char* kWithWeights = "int4";
constexpr std::array kGenerated{"fp16", "int4"};
constexpr const char* kPrompt = "The old man walked to the window and";
constexpr int32_t kGeneratedTokens = 13;

/// Bytes of each format's caches, which calls read in turn. All formats' together are several times as much, so that a
/// call finds nothing of its own in the processor's caches; making more copies would take most of the time.
constexpr uint64_t kMostTimedBytes = uint64_t{128} << 20;

struct Extent {
  PerplexityOptions perplexity;
  NeedleOptions needle;
  AttentionShape attention;
  int64_t hessian_tokens;
};

constexpr Extent kFull{.perplexity = {.context = 2048, .windows = 2, .chunk = 32},
                       .needle = {.context = 1024, .samples = 3, .seed = 1, .chunk = 32},
                       .attention = {.length = 8192, .most_bytes = kMostTimedBytes},
                       .hessian_tokens = 4096};
constexpr Extent kQuick{
    .perplexity = {.context = 256, .windows = 1, .chunk = 32},
    .needle = {.context = 256, .samples = 1, .seed = 1, .chunk = 32},
    .attention = {.layer = {.q_heads = 8, .kv_heads = 2}, .length = 1024, .most_bytes = kMostTimedBytes / 2},
    .hessian_tokens = 512};

struct Format {
  std::string kv;     // SPEC with the demo model
  std::string speed;  // with the layer that is timed
};

struct DemoOptions {
  ComputeOptions compute;
  bool quick = false;
  bool trellis = false;
  bool json = false;
};

struct DemoRow {
  Format format;
  PerplexityResult perplexity;
  PerplexityResult baseline;  // FP16's, of the same tokens
  NeedleResult needle;
  double microseconds = 0.0;  // of attention
};

struct Sample {
  std::string kv;
  std::string text;
};

struct Report {
  std::vector<Sample> samples;
  std::vector<DemoRow> formats;
  WeightsRow plain;  // the model as it is
  std::vector<WeightsRow> weights;
  AttentionSpeed speed;
  std::string machine;
  double seconds = 0.0;
};

std::vector<Format> all_formats() {
  std::vector<Format> formats;
  const auto add = [&formats](const std::string& kv) { formats.push_back({kv, kv}); };
  add(kBaseline);
  std::ranges::for_each(kGainShapes, add);
  for (const std::string kv : kGainShapes) add(kv + "-256");
  for (const std::string& name : format_names()) {
    if (name.starts_with("int")) add(name);
  }
  for (const std::string bits : {"2", "1"}) formats.push_back({"commvq-" + bits + "bit", "commvq-" + bits});
  add("moqae");
  add(kEvicting);
  return formats;
}

PerplexityResult baseline_of(const PerplexityResult& format, const PerplexityResult& fp16) {
  PerplexityResult baseline = fp16;
  if (format.second_half) baseline.perplexity = fp16.second_half_perplexity;
  return baseline;
}

void measure_quality(Engine& engine, const std::vector<Format>& formats, llama::Tokens tokens, const Extent& extent,
                     std::vector<DemoRow>& rows) {
  const int64_t steps = int64_t{extent.perplexity.windows} * extent.perplexity.context +
                        int64_t{extent.needle.samples} * extent.needle.context;
  Progress progress("quality", steps * static_cast<int64_t>(formats.size()));
  for (const Format& each : formats) {
    const Spec format = load_spec(engine, each.kv);
    DemoRow row{.format = each, .perplexity = {}, .baseline = {}, .needle = {}};
    row.perplexity = measure_perplexity(engine, format, tokens, extent.perplexity, progress);
    row.baseline = baseline_of(row.perplexity, rows.empty() ? row.perplexity : rows.front().perplexity);
    row.needle = measure_needle(engine, format, tokens, extent.needle, progress);
    rows.push_back(std::move(row));
  }
}

AttentionSpeed measure_speed(const ComputeOptions& compute, const Extent& extent, std::vector<DemoRow>& rows) {
  std::vector<std::string> formats;
  for (const DemoRow& row : rows) formats.push_back(row.format.speed);
  AttentionSpeed speed = measure_attention_speed(compute, extent.attention, formats);
  for (size_t i = 0; i < rows.size(); ++i) rows[i].microseconds = speed.microseconds[i];
  return speed;
}

std::vector<Sample> generate_samples(Engine& engine) {
  const llama::ModelConfig& config = engine.model.config();
  std::vector<int32_t> prompt = with_bos(config, engine.tokenizer.encode(kPrompt));
  Progress progress("text", static_cast<int64_t>(prompt.size() * kGenerated.size()));
  std::vector<Sample> samples;
  for (const char* kv : kGenerated) {
    const Spec format = load_spec(engine, kv);
    llama::Session session(engine.model, engine.context, format);
    llama::Sampler greedy(0.0, 1.0, 0);
    const std::span<const float> logits = prefill(session, prompt, kFull.perplexity.chunk, progress);
    Sample sample{kv, kPrompt};
    generate_tokens(config, session, logits, kGeneratedTokens, greedy, [&](int32_t token) {
      sample.text += engine.tokenizer.decode_piece(token);
      return true;
    });
    std::ranges::replace(sample.text, '\n', ' ');
    samples.push_back(std::move(sample));
  }
  return samples;
}

std::vector<std::string> weight_schemes(const DemoOptions& options) {
  std::vector<std::string> schemes{"nuq-4"};
  if (!options.quick) schemes.insert(schemes.end(), {"vq-3", "vq-2.5"});
  if (options.trellis) schemes.insert(schemes.end(), {"tcq-3", "tcx-3", "tcq-2"});
  return schemes;
}

WeightsRow plain_weights(const Engine& engine, const std::filesystem::path& directory, const DemoRow& fp16) {
  return {.scheme = "bf16",
          .kv = fp16.format.kv,
          .linear_bits = engine.model.weights().bits,
          .bits = engine.model.weights().bits,
          .bytes = std::filesystem::file_size(directory / "model.safetensors"),
          .perplexity = fp16.perplexity};
}

double rise_percent(const DemoRow& row) { return 100.0 * (row.perplexity.perplexity / row.baseline.perplexity - 1.0); }

void print_samples(const std::filesystem::path& directory, const std::vector<Sample>& samples) {
  print_text("The demo model (" + bytes_text(std::filesystem::file_size(directory / "model.safetensors")) +
             ") writes, with its KV cache in\n\n");
  for (const Sample& sample : samples) print_text("  " + sample.kv + ": " + sample.text + "\n");
}

/// How long everything takes where the model reads so fast with an FP16 cache.
double expected_seconds(double tokens_per_second, const Extent& extent, size_t formats, size_t schemes) {
  constexpr double kFixed = 3.0;           // seconds that timing takes, however fast
  constexpr double kAllOverReading = 2.1;  // as measured: slower formats, caches to fill for timing, quantizing
  const double windows = 1.0 * extent.perplexity.windows * extent.perplexity.context;
  const double needles = 1.0 * extent.needle.samples * extent.needle.context;
  const double of_formats = static_cast<double>(formats) * (windows + needles);
  const double of_weights =
      static_cast<double>(schemes) * (windows + static_cast<double>(extent.hessian_tokens)) + windows;
  return kFixed + kAllOverReading * (of_formats + of_weights) / tokens_per_second;
}

void announce(double seconds, const Disturbance& disturbance, bool trellis) {
  constexpr double kStep = 5.0;
  print_text("\nNow the same model with every format, which takes about " +
             duration_text(kStep * std::ceil(seconds / kStep)) + (trellis ? " and, for trellises, minutes" : "") +
             ".\n" + disturbance_text(disturbance, " it takes longer"));
}

/// \param rows  FP16 first, which the others are compared with.
std::string formats_table(const Extent& extent, const std::vector<DemoRow>& rows, const std::string& perplexity_of) {
  Table table({"KV format", "bits per\nscalar", "KV cache\n" + std::to_string(extent.perplexity.context) + " tokens",
               "times\nsmaller", "perplexity" + perplexity_of, "rise over\nFP16", "keys\nfound", "attention\nus",
               "times\nfaster"});
  const auto plain_bytes = static_cast<double>(rows[0].perplexity.usage.plain_fp16_bytes);  // of all tokens
  for (const DemoRow& row : rows) {
    const kvq_usage& usage = row.perplexity.usage;
    table.add_row({row.format.kv, number_text(usage.bits_per_scalar, 2), bytes_text(kv_bytes(usage)),
                   number_text(plain_bytes / static_cast<double>(kv_bytes(usage)), 2),
                   number_text(row.perplexity.perplexity, 3),
                   &row == rows.data() ? "" : signed_percent(rise_percent(row)),
                   std::to_string(row.needle.found) + "/" + std::to_string(extent.needle.samples),
                   number_text(row.microseconds, 0), number_text(rows[0].microseconds / row.microseconds, 2)});
  }
  return table.text();
}

/// Formats that evict, below FP16 on what is scored of them.
std::string evicting_text(const Extent& extent, const std::vector<DemoRow>& rows) {
  std::vector<DemoRow> shown;
  std::string warnings;
  for (const DemoRow& row : rows) {
    if (!row.perplexity.second_half) continue;
    if (shown.empty()) {
      shown.push_back(rows.front());
      shown.front().perplexity = row.baseline;
    }
    shown.push_back(row);
    if (rise_percent(row) <= kMuchLost) continue;
    warnings += too_much_evicted_text(row.format.kv, rise_percent(row), "FP16");
  }
  return "After eviction, the second half of each text, with FP16's perplexity of the same tokens:\n\n" +
         formats_table(extent, shown, " of\nsecond halves") + "\n" +
         "+adasnap:256 keeps 256 tokens a head of what was read, on average: of the keys' prompts, and of\n" +
         "the first half of each text, whose second half is scored.\n" + warnings;
}

void print_formats(const Extent& extent, const Report& report) {
  const std::vector<DemoRow>& rows = report.formats;
  const LayerShape& layer = extent.attention.layer;
  std::vector<DemoRow> whole;
  std::ranges::copy_if(rows, std::back_inserter(whole), [](const DemoRow& row) { return !row.perplexity.second_half; });
  print_text(
      "\n" + formats_table(extent, whole, "") + "\n" +
      "Sizes count everything: codes, scales, positions, and the newest 32 tokens, which stay FP16.\n" +
      "Perplexity of " + std::to_string(extent.perplexity.windows) + " x " + std::to_string(extent.perplexity.context) +
      " tokens of prose; keys: five digits hidden in " + std::to_string(extent.needle.context) + " tokens.\n" +  //
      "gs2, gt2: codes of 2 bits and a gain for each token, no training; the first 32 tokens stay FP16.\n" +
      "-256: the same around 256 trained centres a head.\n" +                                      //
      "moqae: routers choose FP16, INT4 or INT2 for every 32 tokens; the first 32 stay FP16.\n" +  //
      "Attention: one decoding step of one layer at " + std::to_string(extent.attention.length) + " tokens, " +
      std::to_string(layer.q_heads) + " query and " + std::to_string(layer.kv_heads) + " KV heads of " +
      std::to_string(layer.head_dim) + ",\nthe best of " + std::to_string(report.speed.rounds) + " rounds on " +
      report.machine + ".\n" +
      disturbance_text(report.speed.disturbance, "\ntimes are the best of " + std::to_string(report.speed.rounds) +
                                                     " rounds and may be too high") +
      "\n" + evicting_text(extent, rows));
}

void print_report(const Extent& extent, const Report& report) {
  print_formats(extent, report);
  if (!report.weights.empty()) {
    print_text("\n" + weights_figures(report.weights, report.plain).table() + "\n" +
               "Linear layers in few bits: codes, scales and signs count. Files hold the embedding too, which stays\n" +
               "BF16. Codes were chosen just now by what they lose on other prose (LDLQ).\n");
  }
  print_text("\nDone in " + number_text(report.seconds, 0) +
             " s. Next: kvq generate --help, kvq eval perplexity --help, kvq quantize --help.\n");
}

void print_report_json(const DemoOptions& options, const Extent& extent, const Report& report) {
  const std::vector<DemoRow>& rows = report.formats;
  Json object;
  object["formats"] = Json::array();
  for (const DemoRow& row : rows) {
    Json format;
    format["kv"] = row.format.kv;
    format["perplexity"] = row.perplexity.perplexity;
    format["second_half"] = row.perplexity.second_half;
    format["fp16_perplexity"] = row.baseline.perplexity;
    format["rise_percent"] = rise_percent(row);
    format["tokens"] = row.perplexity.tokens;
    add_usage(format, row.perplexity.usage);
    format["accuracy"] = static_cast<double>(row.needle.found) / extent.needle.samples;
    format["samples"] = extent.needle.samples;
    format["microseconds"] = row.microseconds;
    format["ratio"] = rows[0].microseconds / row.microseconds;
    object["formats"].push_back(std::move(format));
  }
  object["weights"] = weights_figures(report.weights, report.plain).objects();
  object["context"] = extent.perplexity.context;
  object["attention_length"] = extent.attention.length;
  object["attention_rounds"] = report.speed.rounds;
  object["attention_slowdown"] = report.speed.disturbance.slowdown;
  for (const Sample& sample : report.samples) object["generated"][sample.kv] = sample.text;
  object["seconds"] = report.seconds;
  object["device"] = options.compute.device;
  print_json(object);
}

void run(const DemoOptions& options) {
  const Stopwatch watch;
  const Extent& extent = options.quick ? kQuick : kFull;
  const std::filesystem::path directory = demo_model_directory();
  Engine engine(directory, options.compute);
  const std::vector<int32_t> tokens = engine.tokenizer.encode(read_corpus(directory / "sample.txt"));
  Report report;
  report.samples = generate_samples(engine);
  report.machine = machine_text(engine.context, options.compute);
  const std::vector<Format> formats = all_formats();
  if (!options.json) {
    print_samples(directory, report.samples);
    const ReadingSpeed reading = measure_reading_speed(engine, tokens, extent.perplexity.chunk);
    announce(expected_seconds(reading.tokens_per_second, extent, formats.size(), weight_schemes(options).size()),
             reading.disturbance, options.trellis);
  }
  measure_quality(engine, formats, tokens, extent, report.formats);
  report.speed = measure_speed(options.compute, extent, report.formats);
  report.plain = plain_weights(engine, directory, report.formats.front());
  const WeightsDemo weights{.model = directory,
                            .perplexity = extent.perplexity,
                            .hessian_tokens = extent.hessian_tokens,
                            .schemes = weight_schemes(options),
                            .compute = options.compute};
  report.weights = weights.measure(tokens, kWithWeights);
  report.seconds = watch.seconds();
  if (options.json) return print_report_json(options, extent, report);
  print_report(extent, report);
}

}  // namespace

void add_demo(Command app) {
  Command command =
      app.add_command("demo", "The model that comes with the program, with every KV format and some weight schemes");
  auto options = std::make_shared<DemoOptions>();
  add_compute_options(command, options->compute);
  add_device_options(command, options->compute);
  command.add_flag("--quick", options->quick, "Measure less: about ten seconds instead of a minute");
  command.add_flag("--trellis", options->trellis, "Weights in trellis codes too, which take minutes to find");
  add_json_flag(command, options->json);
  command.on_run([options] { run(*options); });
}

}  // namespace cli
