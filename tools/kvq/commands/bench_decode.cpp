#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "bench/linear_timing.h"
#include "bench/random_layer.h"
#include "bench/timing.h"
#include "commands/commands.h"
#include "llama/config.h"
#include "options/command.h"
#include "options/common.h"
#include "options/spec.h"
#include "terminal/output.h"

namespace cli {
namespace {

constexpr uint64_t kDecodeInputSeed = 20;
constexpr uint64_t kDecodeQuerySeed = 21;
constexpr uint64_t kDecodeKeySeed = 22;
constexpr uint64_t kDecodeValueSeed = 23;
constexpr size_t kMostShared = 3;  // q, k and v

// Steps that a sequence has room for: all that are timed, in whole cycles, and those before.
constexpr int32_t kMostSteps = static_cast<int32_t>(kMaxRepetitions) + 3 * KVQ_PAGE_SLOTS;

/// A step of decoding: linear layers and attention of every decoder layer, without what an engine computes between
/// them.
struct DecodeShape {
  llama::ModelConfig model;  // its sizes
  int32_t length = 0;        // tokens in the cache of each sequence; 0: linear layers alone
  int32_t batch = 1;         // sequences, of each of which a token is decoded
  kvq_dtype dtype = KVQ_F32;

  LayerShape attention() const { return {model.q_heads, model.kv_heads, model.head_dim}; }
  /// Scalars of a step.
  size_t query_scalars() const { return scalars(model.q_heads); }
  size_t key_scalars() const { return scalars(model.kv_heads); }
  /// Steps after which the open pages are as full as before, so that all the work a token causes is among them.
  int32_t cycle() const { return length > 0 ? KVQ_PAGE_SLOTS : 1; }

 private:
  size_t scalars(int32_t heads) const {
    return static_cast<size_t>(batch) * static_cast<size_t>(heads) * static_cast<size_t>(model.head_dim);
  }
};

/// The linear layers of a model, of random weights in one scheme, each in memory of its own.
class DecoderWeights {
 public:
  DecoderWeights(kvq_context* context, const std::string& scheme, const llama::ModelConfig& model);

  /// Those that read the same inputs.
  std::vector<const qp_matrix*> matrices(int32_t layer, llama::LinearInput input) const;
  uint64_t bytes() const { return bytes_; }

 private:
  struct Packed {
    llama::LinearInput input;
    kvq::Matrix matrix;
  };

  std::vector<std::vector<Packed>> layers_;
  uint64_t bytes_ = 0;
};

/// Steps of decoding, ready to be timed. Every call reads random numbers, not those that the one before it wrote.
class TimedDecode {
 public:
  /// \param format  of the cache; not used if there is none.
  TimedDecode(TimedDevice& device, kvq_context* context, const Tuning& tuning,
              std::shared_ptr<const DecoderWeights> weights, const Spec& format, const DecodeShape& shape);
  TimedDecode(const TimedDecode&) = delete;
  TimedDecode& operator=(const TimedDecode&) = delete;

  /// Microseconds of the next step, by which every sequence grows by a token.
  double run() { return device_->time(step_); }
  uint64_t weight_bytes() const { return weights_->bytes(); }
  /// Bytes of the keys and values that the first step reads, everything counted.
  uint64_t cache_bytes() const { return cache_bytes_; }

 private:
  void make_cache(kvq_context* context, const Spec& format);
  void issue_step();
  void multiply(int32_t layer, llama::LinearInput input);
  void attend(int32_t layer);

  TimedDevice* device_;
  std::shared_ptr<const DecoderWeights> weights_;
  DecodeShape shape_;
  DeviceBuffer x_;               // [batch, in] of the widest inputs
  std::vector<DeviceBuffer> y_;  // [batch, out] of the widest outputs, of as many as share inputs
  DeviceBuffer q_, k_, v_, attended_;
  kvq::Cache cache_ = nullptr;
  std::vector<kvq::Sequence> sequences_;
  uint64_t cache_bytes_ = 0;
  std::function<void()> step_;
};

size_t widest(const llama::ModelConfig& model, int64_t llama::LinearLayer::*side) {
  int64_t most = 0;
  for (const llama::LinearLayer& layer : llama::linear_layers(model, 0)) most = std::max(most, layer.*side);
  return static_cast<size_t>(most);
}

DecoderWeights::DecoderWeights(kvq_context* context, const std::string& scheme, const llama::ModelConfig& model) {
  RandomMatrices random(context, scheme);
  for (int32_t i = 0; i < model.n_layers; ++i) {
    std::vector<Packed>& layer = layers_.emplace_back();
    for (const llama::LinearLayer& each : llama::linear_layers(model, i)) {
      layer.push_back({each.input, random.load(each.out, each.in)});
      bytes_ += layer.back().matrix.describe().bytes;
    }
  }
}

std::vector<const qp_matrix*> DecoderWeights::matrices(int32_t layer, llama::LinearInput input) const {
  std::vector<const qp_matrix*> shared;
  for (const Packed& each : layers_[static_cast<size_t>(layer)]) {
    if (each.input == input) shared.push_back(each.matrix);
  }
  return shared;
}

TimedDecode::TimedDecode(TimedDevice& device, kvq_context* context, const Tuning& tuning,
                         std::shared_ptr<const DecoderWeights> weights, const Spec& format, const DecodeShape& shape)
    : device_(&device),
      weights_(std::move(weights)),
      shape_(shape),
      x_(random_scalars(device, static_cast<size_t>(shape.batch) * widest(shape.model, &llama::LinearLayer::in),
                        kDecodeInputSeed, shape.dtype)),
      q_(random_scalars(device, shape.query_scalars(), kDecodeQuerySeed, shape.dtype)),
      k_(random_scalars(device, shape.key_scalars(), kDecodeKeySeed, shape.dtype)),
      v_(random_scalars(device, shape.key_scalars(), kDecodeValueSeed, shape.dtype)),
      attended_(random_scalars(device, shape.query_scalars(), kDecodeQuerySeed, shape.dtype)) {
  const size_t outputs = static_cast<size_t>(shape.batch) * widest(shape.model, &llama::LinearLayer::out);
  for (size_t i = 0; i < kMostShared; ++i) {
    y_.push_back(device.upload(std::vector<std::byte>(outputs * bytes_of(shape.dtype))));
  }
  if (shape.length > 0) make_cache(context, format);
  using enum llama::LinearInput;  // of which layers have the same shapes
  for (const llama::LinearInput input : {kAttention, kOutput, kMlp, kDown}) {
    tuning.measure(weights_->matrices(0, input), shape.batch);
  }
  issue_step();  // makes work space
  for (kvq::Sequence& sequence : sequences_) {
    if (device.records()) sequence.reserve(kMostSteps);
  }
  step_ = device.record(context, [this] { issue_step(); });
}

void TimedDecode::make_cache(kvq_context* context, const Spec& format) {
  const int32_t n_layers = shape_.model.n_layers;
  cache_ = cache_of_layers(context, format, shape_.attention(), n_layers);
  for (int32_t i = 0; i < shape_.batch; ++i) sequences_.emplace_back(cache_);
  append_random(*device_, sequences_, shape_.attention(), shape_.length, n_layers);
  for (const kvq::Sequence& sequence : sequences_) cache_bytes_ += kv_bytes(sequence.usage());
}

void TimedDecode::issue_step() {
  using enum llama::LinearInput;
  for (int32_t layer = 0; layer < shape_.model.n_layers; ++layer) {
    multiply(layer, kAttention);
    if (!sequences_.empty()) attend(layer);
    for (const llama::LinearInput input : {kOutput, kMlp, kDown}) multiply(layer, input);
  }
}

void TimedDecode::multiply(int32_t layer, llama::LinearInput input) {
  const std::vector<const qp_matrix*> matrices = weights_->matrices(layer, input);
  std::vector<void*> outputs;
  for (size_t i = 0; i < matrices.size(); ++i) outputs.push_back(y_[i].get());
  kvq::Matrix::linear_shared(matrices, x_.get(), shape_.batch, outputs, shape_.dtype);
}

void TimedDecode::attend(int32_t layer) {
  const std::vector<kvq_sequence*> sequences = kvq::pointers(sequences_);
  auto tokens = kvq::initialised<kvq_append_batch>();
  tokens.n_sequences = shape_.batch;
  tokens.sequences = sequences.data();
  tokens.k = k_.get();
  tokens.v = v_.get();
  tokens.dtype = shape_.dtype;
  cache_.append(layer, tokens);
  auto queries = kvq::initialised<kvq_attend_batch>();
  queries.n_sequences = shape_.batch;
  queries.sequences = sequences.data();
  queries.q = q_.get();
  queries.q_dtype = shape_.dtype;
  queries.output = attended_.get();
  queries.output_dtype = shape_.dtype;
  cache_.attend(layer, queries);
}

/// Bytes that weights in `schemes` and so many caches may take, at most.
uint64_t timing_memory(const DecodeShape& shape, const std::vector<std::string>& schemes, size_t caches) {
  const auto layers = static_cast<uint64_t>(shape.model.n_layers);
  uint64_t bytes = 0;
  for (const std::string& scheme : schemes) {
    for (const llama::LinearLayer& each : llama::linear_layers(shape.model, 0)) {
      bytes += layers * kvq::Matrix::predict_bytes(scheme, each.out, each.in, 0);
    }
  }
  if (shape.length == 0) return bytes;
  const uint64_t tokens = static_cast<uint64_t>(shape.batch) * static_cast<uint64_t>(shape.length + kMostSteps);
  return bytes + caches * layers * tokens * shape.attention().fp16_token_bytes();
}

constexpr const char* kPlain = "fp16";

struct BenchDecodeOptions {
  std::vector<std::string> schemes{"tcx-3"};
  std::vector<std::string> kv;
  int32_t layers = 32;
  int32_t hidden = 4096;
  int32_t mlp = 14336;
  LayerShape layer;
  int32_t length = 0;
  int32_t batch = 1;
  DtypeOption dtype;
  std::string tuning;
  ComputeOptions compute;
  bool json = false;

  DecodeShape shape() const {
    DecodeShape shape{.model = {}, .length = length, .batch = batch, .dtype = dtype.dtype(compute)};
    shape.model.n_layers = layers;
    shape.model.hidden_size = hidden;
    shape.model.intermediate_size = mlp;
    shape.model.q_heads = layer.q_heads;
    shape.model.kv_heads = layer.kv_heads;
    shape.model.head_dim = layer.head_dim;
    return shape;
  }
};

/// How weights and cache are stored.
struct Formats {
  std::string scheme;
  std::string kv;
};

/// FP16 first, then every scheme with every format of the cache.
std::vector<Formats> formats_of(const BenchDecodeOptions& options) {
  std::vector<Formats> all{{kPlain, kPlain}};
  for (const std::string& scheme : options.schemes) {
    for (const std::string& kv : options.kv.empty() ? std::vector<std::string>{kPlain} : options.kv) {
      all.push_back({scheme, kv});
    }
  }
  return all;
}

struct BenchDecodeRow {
  Formats formats;
  Timing timing;  // microseconds of a step
  uint64_t weight_bytes = 0;
  uint64_t cache_bytes = 0;

  double milliseconds() const { return 1e-3 * timing.median; }
  double tokens_per_second(int32_t batch) const { return 1e6 * batch / timing.median; }
  double gigabytes_per_second() const { return static_cast<double>(weight_bytes + cache_bytes) / timing.median * 1e-3; }
};

void check_multiple(const std::string& option, int32_t width) {
  constexpr int32_t kColumnMultiple = 64;
  if (width % kColumnMultiple == 0) return;
  throw UsageError(option + ": " + std::to_string(width) + " inputs of a linear layer are not a multiple of " +
                   std::to_string(kColumnMultiple));
}

void check(const BenchDecodeOptions& options) {
  for (const std::string& scheme : options.schemes) check_scheme(scheme);
  check_layer(options.layer);
  check_multiple("--hidden", options.hidden);
  check_multiple("--mlp", options.mlp);
  check_multiple("--heads and --head-dim", options.layer.q_heads * options.layer.head_dim);
  if (options.length == 0 && !options.kv.empty()) {
    throw UsageError("--kv " + options.kv.front() + " needs --context, the tokens in the cache");
  }
}

Spec load_format(kvq_context* context, const std::string& kv) {
  Spec format = load_spec(context, kv);
  if (format.evicts()) throw UsageError("--kv " + kv + ": give the tokens that eviction leaves as --context instead");
  return format;
}

std::vector<BenchDecodeRow> measure(TimedDevice& device, kvq_context* context, const Tuning& tuning,
                                    const BenchDecodeOptions& options) {
  const DecodeShape shape = options.shape();
  const std::vector<Formats> formats = formats_of(options);
  Progress progress("decoding", kTimingSteps * static_cast<int64_t>(formats.size() + 1));
  std::map<std::string, std::shared_ptr<const DecoderWeights>> weights;
  std::vector<std::unique_ptr<TimedDecode>> subjects;
  for (const Formats& each : formats) {
    std::shared_ptr<const DecoderWeights>& packed = weights[each.scheme];
    if (packed == nullptr) packed = std::make_shared<const DecoderWeights>(context, each.scheme, shape.model);
    subjects.push_back(
        std::make_unique<TimedDecode>(device, context, tuning, packed, load_format(context, each.kv), shape));
    progress.advance(kTimingSteps);
  }
  const std::vector<Timing> timings = time_in_turn(
      subjects.size(), progress, [&](size_t i) { return subjects[i]->run(); }, shape.cycle());
  std::vector<BenchDecodeRow> rows;
  for (size_t i = 0; i < formats.size(); ++i) {
    rows.push_back({formats[i], timings[i], subjects[i]->weight_bytes(), subjects[i]->cache_bytes()});
  }
  return rows;
}

void add_decode_figures(Json& object, const std::string& prefix, const BenchDecodeRow& row, int32_t batch) {
  object[prefix + "milliseconds"] = row.milliseconds();
  object[prefix + "min"] = 1e-3 * row.timing.min;
  object[prefix + "max"] = 1e-3 * row.timing.max;
  object[prefix + "tokens_per_second"] = row.tokens_per_second(batch);
  object[prefix + "weight_bytes"] = row.weight_bytes;
  object[prefix + "cache_bytes"] = row.cache_bytes;
  object[prefix + "gigabytes_per_second"] = row.gigabytes_per_second();
}

void print_result_json(const BenchDecodeOptions& options, const std::vector<BenchDecodeRow>& rows,
                       const std::string& timing, const BenchMachine& machine) {
  std::vector<Json> objects;
  for (const BenchDecodeRow& row : std::span(rows).subspan(1)) {
    Json object;
    object["scheme"] = row.formats.scheme;
    if (options.length > 0) object["kv"] = row.formats.kv;
    add_decode_figures(object, "", row, options.batch);
    add_decode_figures(object, "fp16_", rows.front(), options.batch);
    object["ratio"] = rows.front().timing.median / row.timing.median;
    object["read_bandwidth_gigabytes_per_second"] = machine.bandwidth;
    object["repetitions"] = row.timing.repetitions;
    objects.push_back(std::move(object));
  }
  print_bench_json(objects,
                   {{"layers", options.layers},
                    {"hidden", options.hidden},
                    {"heads", options.layer.q_heads},
                    {"kv_heads", options.layer.kv_heads},
                    {"head_dim", options.layer.head_dim},
                    {"mlp", options.mlp},
                    {"length", options.length},
                    {"batch", options.batch},
                    {"dtype", options.dtype.name(options.compute)},
                    {"cycle", options.shape().cycle()},
                    {"timing", timing}},
                   options.compute, machine);
}

/// A count and its noun.
std::string counted(int32_t n, const std::string& noun) { return std::to_string(n) + " " + noun + (n == 1 ? "" : "s"); }

std::string heading(const BenchDecodeOptions& options, const std::vector<BenchDecodeRow>& rows,
                    const std::string& timing, const BenchMachine& machine) {
  std::string text = "A step of decoding: " + counted(options.layers, "layer") + " of " +
                     std::to_string(options.hidden) + " and " + std::to_string(options.mlp) + " channels, " +
                     std::to_string(options.layer.q_heads) + " query and " + std::to_string(options.layer.kv_heads) +
                     " KV heads of " + std::to_string(options.layer.head_dim) + ", batch " +
                     std::to_string(options.batch) + ", in " + options.dtype.name(options.compute) + ";\n";
  text += options.length > 0 ? "linear layers, appending and attention over " + std::to_string(options.length) +
                                   " tokens a sequence and those that follow;\n"
                             : "linear layers alone;\n";
  const int32_t cycle = options.shape().cycle();
  return text + machine.name + ", " + machine.isa + ", " + std::to_string(rows.front().timing.repetitions * cycle) +
         " steps in turn" + (timing == "graph" ? ", each a CUDA graph" : "") +
         (cycle > 1 ? "; times are means of " + std::to_string(cycle) : "") + ". Memory gives " +
         number_text(machine.bandwidth, 1) + " GB/s.\n";
}

void print_result(const BenchDecodeOptions& options, const std::vector<BenchDecodeRow>& rows, const std::string& timing,
                  const BenchMachine& machine) {
  const bool is_one = rows.front().timing.repetitions == 1;  // which has no spread
  std::vector<std::string> headings{"weights", "cache", "bytes of\nweights", "bytes of\ncache"};
  const std::vector<std::string> times =
      is_one ? std::vector<std::string>{"ms"} : std::vector<std::string>{"median\nms", "min\nms", "max\nms"};
  headings.insert(headings.end(), times.begin(), times.end());
  // A model of more layers is slower.
  headings.insert(headings.end(),
                  {"tokens/s of\n" + counted(options.layers, "layer"), "GB/s", "times faster\nthan FP16"});
  Table table(headings);
  for (const BenchDecodeRow& row : rows) {
    std::vector<std::string> cells{row.formats.scheme, options.length > 0 ? row.formats.kv : "-",
                                   bytes_text(row.weight_bytes), options.length > 0 ? bytes_text(row.cache_bytes) : "-",
                                   number_text(row.milliseconds(), 3)};
    if (!is_one) {
      cells.insert(cells.end(), {number_text(1e-3 * row.timing.min, 3), number_text(1e-3 * row.timing.max, 3)});
    }
    cells.insert(cells.end(),
                 {number_text(row.tokens_per_second(options.batch), 1), number_text(row.gigabytes_per_second(), 1),
                  number_text(rows.front().timing.median / row.timing.median, 2)});
    table.add_row(std::move(cells));
  }
  print_text(heading(options, rows, timing, machine) + "\n" + table.text());
}

void run(const BenchDecodeOptions& options) {
  check(options);
  const std::unique_ptr<TimedDevice> device = make_timed_device(options.compute);
  require_memory(*device, timing_memory(options.shape(), with_baseline(options.schemes), formats_of(options).size()));
  const kvq::Context context = make_context(options.compute);
  const Tuning tuning(context, options.tuning);
  const std::vector<BenchDecodeRow> rows = measure(*device, context, tuning, options);
  tuning.keep();
  const BenchMachine machine = measure_machine(*device, context);
  const std::string timing = device->records() ? "graph" : "calls";
  if (options.json) return print_result_json(options, rows, timing, machine);
  print_result(options, rows, timing, machine);
}

}  // namespace

void add_bench_decode(Command bench) {
  Command command = bench.add_command(
      "decode",
      "Time of a step of decoding on random weights and caches, against FP16 in the same run: all linear layers, "
      "appending and attention of a model's shape, on a GPU in one CUDA graph; norms, activations and logits are left "
      "out. The default shape is that of Llama 3 8B");
  auto options = std::make_shared<BenchDecodeOptions>();
  add_schemes_option(command, options->schemes, "Of the linear layers, as of `kvq quantize`; may be repeated")
      .show_default();
  command.add_option("--layers", options->layers, "Decoder layers; fewer take less memory")
      .range(1, 1 << 10)
      .show_default();
  command.add_option("--hidden", options->hidden, "Channels between layers").range(64, 1 << 20).show_default();
  command.add_option("--mlp", options->mlp, "Channels within an MLP").range(64, 1 << 20).show_default();
  add_layer_options(command, options->layer);
  command
      .add_option(kContextNames, options->length,
                  "Tokens in the cache at first, to which each step adds one; 0: linear layers alone")
      .range(0, 1 << 24)
      .show_default();
  command.add_option("--kv", options->kv, std::string(kSpecHelp) + "; may be repeated (default: fp16)").repeatable();
  command.add_option("--batch", options->batch, "Sequences, each of --context tokens").range(1, 1 << 12).show_default();
  add_dtype_option(command, options->dtype);
  add_tuning_option(command, options->tuning);
  add_run_options(command, options->compute, options->json);
  command.on_run([options] { run(*options); });
}

}  // namespace cli
