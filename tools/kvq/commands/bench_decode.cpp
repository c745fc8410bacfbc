#include <algorithm>
#include <map>

#include "bench/bench.h"
#include "bench/timed_calls.h"
#include "commands/commands.h"

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
  int32_t layers = 32;
  int32_t hidden = 4096;
  int32_t mlp = 14336;
  LayerShape layer;
  int32_t length = 0;  // tokens in the cache of each sequence; 0: linear layers alone
  int32_t batch = 1;   // sequences, of each of which a token is decoded
  kvq_dtype dtype = KVQ_F32;

  size_t scalars(int32_t heads) const {
    return static_cast<size_t>(batch) * static_cast<size_t>(heads) * static_cast<size_t>(layer.head_dim);
  }
  /// Steps after which the open pages are as full as before, so that all the work a token causes is among them.
  int32_t cycle() const { return length > 0 ? KVQ_PAGE_SLOTS : 1; }

  auto linear_layers() const {
    llama::ModelConfig model;
    model.hidden_size = hidden;
    model.intermediate_size = mlp;
    model.q_heads = layer.q_heads;
    model.kv_heads = layer.kv_heads;
    model.head_dim = layer.head_dim;
    return llama::linear_layers(model, 0);
  }
  size_t widest(int64_t llama::LinearLayer::*side) const {
    const auto all = linear_layers();
    return static_cast<size_t>(std::ranges::max_element(all, {}, side)->*side);
  }
};

/// The linear layers of a model, of random weights in one scheme, each in memory of its own.
class DecoderWeights {
 public:
  DecoderWeights(kvq_context* context, const std::string& scheme, const DecodeShape& shape) {
    RandomMatrices random(context, scheme);
    for (int32_t i = 0; i < shape.layers; ++i) {
      std::vector<Packed>& layer = layers_.emplace_back();
      for (const llama::LinearLayer& each : shape.linear_layers()) {
        layer.push_back({each.input, random.load(each.out, each.in)});
        bytes_ += layer.back().matrix.describe().bytes;
      }
    }
  }

  /// Those that read the same inputs.
  std::vector<const qp_matrix*> matrices(int32_t layer, llama::LinearInput input) const {
    std::vector<const qp_matrix*> shared;
    for (const Packed& each : layers_[static_cast<size_t>(layer)]) {
      if (each.input == input) shared.push_back(each.matrix);
    }
    return shared;
  }
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

TimedDecode::TimedDecode(TimedDevice& device, kvq_context* context, const Tuning& tuning,
                         std::shared_ptr<const DecoderWeights> weights, const Spec& format, const DecodeShape& shape)
    : device_(&device),
      weights_(std::move(weights)),
      shape_(shape),
      x_(random_scalars(device, static_cast<size_t>(shape.batch) * shape.widest(&llama::LinearLayer::in),
                        kDecodeInputSeed, shape.dtype)),
      q_(random_scalars(device, shape.scalars(shape.layer.q_heads), kDecodeQuerySeed, shape.dtype)),
      k_(random_scalars(device, shape.scalars(shape.layer.kv_heads), kDecodeKeySeed, shape.dtype)),
      v_(random_scalars(device, shape.scalars(shape.layer.kv_heads), kDecodeValueSeed, shape.dtype)),
      attended_(random_scalars(device, shape.scalars(shape.layer.q_heads), kDecodeQuerySeed, shape.dtype)) {
  const size_t outputs = static_cast<size_t>(shape.batch) * shape.widest(&llama::LinearLayer::out);
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
  cache_ = cache_of_layers(context, format, shape_.layer, shape_.layers);
  for (int32_t i = 0; i < shape_.batch; ++i) sequences_.emplace_back(cache_);
  append_random(*device_, sequences_, shape_.layer, shape_.length, shape_.layers);
  for (const kvq::Sequence& sequence : sequences_) cache_bytes_ += kv_bytes(sequence.usage());
}

void TimedDecode::issue_step() {
  using enum llama::LinearInput;
  for (int32_t layer = 0; layer < shape_.layers; ++layer) {
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
  const auto layers = static_cast<uint64_t>(shape.layers);
  uint64_t bytes = 0;
  for (const std::string& scheme : schemes) {
    for (const llama::LinearLayer& each : shape.linear_layers()) {
      bytes += layers * kvq::Matrix::predict_bytes(scheme, each.out, each.in, 0);
    }
  }
  if (shape.length == 0) return bytes;
  const uint64_t tokens = static_cast<uint64_t>(shape.batch) * static_cast<uint64_t>(shape.length + kMostSteps);
  return bytes + caches * layers * tokens * shape.layer.fp16_token_bytes();
}

struct BenchDecodeOptions : DecodeShape {
  std::vector<std::string> schemes{"tcx-3"};
  std::vector<std::string> kv;
  DtypeOption dtype_option;
  std::string tuning;
  ComputeOptions compute;
  bool json = false;
};

struct Formats {
  std::string scheme = "fp16";
  std::string kv = "fp16";
};

std::vector<Formats> formats_of(const BenchDecodeOptions& options) {
  std::vector<Formats> all{{}};
  for (const std::string& scheme : options.schemes) {
    if (options.kv.empty()) all.push_back({.scheme = scheme});
    for (const std::string& kv : options.kv) all.push_back({scheme, kv});
  }
  return all;
}

struct BenchDecodeRow {
  Formats formats;
  Timing timing;  // microseconds of a step
  uint64_t weight_bytes = 0;
  uint64_t cache_bytes = 0;

  double tokens_per_second(int32_t batch) const { return 1e6 * batch / timing.median; }
  double gigabytes_per_second() const { return static_cast<double>(weight_bytes + cache_bytes) / timing.median * 1e-3; }
};

void check(const BenchDecodeOptions& options) {
  constexpr int32_t kColumnMultiple = 64;
  for (const std::string& scheme : options.schemes) check_scheme(scheme);
  const std::pair<const char*, int32_t> widths[] = {
      {"--hidden", options.hidden},
      {"--mlp", options.mlp},
      {"--heads and --head-dim", options.layer.q_heads * options.layer.head_dim}};
  for (const auto& [option, width] : widths) {
    if (width % kColumnMultiple == 0) continue;
    throw UsageError(std::string(option) + ": " + std::to_string(width) +
                     " inputs of a linear layer are not a multiple of " + std::to_string(kColumnMultiple));
  }
  if (options.length == 0 && !options.kv.empty()) {
    throw UsageError("--kv " + options.kv.front() + " needs --context, the tokens in the cache");
  }
}

Spec load_format(kvq_context* context, const std::string& kv) {
  Spec format = load_random_spec(context, parse_spec("--kv", kv));
  if (format.evicts()) throw UsageError("--kv " + kv + ": give the tokens that eviction leaves as --context instead");
  return format;
}

std::vector<BenchDecodeRow> measure(TimedDevice& device, kvq_context* context, const Tuning& tuning,
                                    const BenchDecodeOptions& options) {
  std::map<std::string, std::shared_ptr<const DecoderWeights>> weights;
  const auto make = [&](const Formats& each) {
    std::shared_ptr<const DecoderWeights>& packed = weights[each.scheme];
    if (packed == nullptr) packed = std::make_shared<const DecoderWeights>(context, each.scheme, options);
    return TimedDecode(device, context, tuning, packed, load_format(context, each.kv), options);
  };
  return measure_subjects("decoding", formats_of(options), make, time_calls(options.cycle()),
                          [](const Formats& formats, const TimedDecode& subject, const Timing& timing) {
                            return BenchDecodeRow{formats, timing, subject.weight_bytes(), subject.cache_bytes()};
                          });
}

Json figures_of(const BenchDecodeRow& row, int32_t batch) {
  return {{"milliseconds", 1e-3 * row.timing.median},
          {"min", 1e-3 * row.timing.min},
          {"max", 1e-3 * row.timing.max},
          {"tokens_per_second", row.tokens_per_second(batch)},
          {"weight_bytes", row.weight_bytes},
          {"cache_bytes", row.cache_bytes},
          {"gigabytes_per_second", row.gigabytes_per_second()}};
}

void print_result_json(const BenchDecodeOptions& options, const std::vector<BenchDecodeRow>& rows,
                       const std::string& timing, const BenchMachine& machine) {
  const BenchDecodeRow& fp16 = rows.front();
  std::vector<Json> objects;
  for (const BenchDecodeRow& row : std::span(rows).subspan(1)) {
    Json& object = objects.emplace_back(Json{{"scheme", row.formats.scheme}});
    if (options.length > 0) object["kv"] = row.formats.kv;
    object.update(figures_of(row, options.batch));
    add_baseline(object, figures_of(fp16, options.batch), fp16.timing.median / row.timing.median, machine);
    object["repetitions"] = row.timing.repetitions;
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
                    {"dtype", options.dtype_option.name(options.compute)},
                    {"cycle", options.cycle()},
                    {"timing", timing}},
                   options.compute, machine);
}

std::string layers_text(int32_t n) { return std::to_string(n) + (n == 1 ? " layer" : " layers"); }

std::string heading(const BenchDecodeOptions& options, int32_t calls, const std::string& timing,
                    const BenchMachine& machine) {
  return "A step of decoding: " + layers_text(options.layers) + " of " + std::to_string(options.hidden) + " and " +
         std::to_string(options.mlp) + " channels, " + options.layer.text() + ", batch " +
         std::to_string(options.batch) + ", in " + options.dtype_option.name(options.compute) + ";\n" +
         (options.length > 0 ? "linear layers, appending and attention over " + std::to_string(options.length) +
                                   " tokens a sequence and those that follow;\n"
                             : "linear layers alone;\n") +
         machine.text(calls * options.cycle(), "steps") + (timing == "graph" ? ", each a CUDA graph" : "") +
         (options.cycle() > 1 ? "; times are means of " + std::to_string(options.cycle()) : "") + machine.memory_text();
}

void print_result(const BenchDecodeOptions& options, const std::vector<BenchDecodeRow>& rows, const std::string& timing,
                  const BenchMachine& machine) {
  const Timing& fp16 = rows.front().timing;
  std::vector<std::string> headings{"weights", "cache", "bytes of\nweights", "bytes of\ncache", "median\nms", "min\nms",
                                    "max\nms",
                                    // A model of more layers is slower.
                                    "tokens/s of\n" + layers_text(options.layers), "GB/s", "times faster\nthan FP16"};
  const bool has_spread = fp16.repetitions > 1;
  if (!has_spread) {
    headings.erase(headings.begin() + 5, headings.begin() + 7);
    headings[4] = "ms";
  }
  Table table(headings);
  for (const BenchDecodeRow& row : rows) {
    std::vector<std::string> times = timing_cells(row.timing, 1e-3, 3);
    if (!has_spread) times.resize(1);
    table.add_row({row.formats.scheme, options.length > 0 ? row.formats.kv : "-", bytes_text(row.weight_bytes),
                   options.length > 0 ? bytes_text(row.cache_bytes) : "-"},
                  times,
                  {number_text(row.tokens_per_second(options.batch), 1), number_text(row.gigabytes_per_second(), 1),
                   number_text(fp16.median / row.timing.median, 2)});
  }
  print_text(heading(options, fp16.repetitions, timing, machine) + "\n" + table.text());
}

void run(BenchDecodeOptions& options) {
  check(options);
  options.dtype = options.dtype_option.dtype(options.compute);
  const std::unique_ptr<TimedDevice> device = make_bench_device(options.layer, options.compute);
  require_memory(*device, timing_memory(options, with_baseline(options.schemes), formats_of(options).size()));
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
  command.add_number("--layers", options->layers, 1, 1 << 10, "Decoder layers; fewer take less memory");
  command.add_number("--hidden", options->hidden, 64, 1 << 20, "Channels between layers");
  command.add_number("--mlp", options->mlp, 64, 1 << 20, "Channels within an MLP");
  add_layer_options(command, options->layer);
  command.add_number(kContextNames, options->length, 0, 1 << 24,
                     "Tokens in the cache at first, to which each step adds one; 0: linear layers alone");
  command
      .add_option("--kv", options->kv,
                  spec_help() + ", and no cache finds scales here; may be repeated (default: fp16)")
      .repeatable();
  command.add_number("--batch", options->batch, 1, 1 << 12, "Sequences, each of --context tokens");
  add_dtype_option(command, options->dtype_option);
  add_tuning_option(command, options->tuning);
  add_run_options(command, options->compute, options->json);
  command.on_run([options] { run(*options); });
}

}  // namespace cli
