#include "bench/bench.h"
#include "bench/timed_calls.h"
#include "commands/commands.h"

namespace cli {
namespace {

struct CompressShape {
  LayerShape layer{};
  int32_t n_layers = 4;
  int32_t length = 32768;
};

/// kvq_compress after a prompt of random tokens, ready to be timed.
class TimedCompress {
 public:
  /// `context` computes on `device`. `format` evicts.
  TimedCompress(TimedDevice& device, kvq_context* context, const Spec& format, const CompressShape& shape)
      : device_(&device),
        options_(kvq::initialised<kvq_compress_options>()),
        cache_(cache_of_layers(context, format, shape.layer, shape.n_layers)),
        start_(cache_) {
    options_.budget = format.budget_after(shape.length);
    append_random(device, std::span(&start_, 1), shape.layer, shape.length, shape.n_layers);
    const int32_t window = std::min(format.policy.describe().eviction_window, shape.length);
    attend_random(device, cache_, start_, shape.layer, window, shape.n_layers);
    bytes_ = kv_bytes(start_.usage());
  }

  /// One call, on a fork of the sequence, in microseconds.
  double run() {
    kvq::Sequence fork = start_.fork();
    const double microseconds = device_->time([&] { fork.compress(options_); });
    bytes_left_ = kv_bytes(fork.usage());
    return microseconds;
  }

  /// Bytes of the sequence before, and after the last call.
  uint64_t bytes() const { return bytes_; }
  uint64_t bytes_left() const { return bytes_left_; }

 private:
  TimedDevice* device_;
  kvq_compress_options options_;
  kvq::Cache cache_;
  kvq::Sequence start_;
  uint64_t bytes_ = 0;
  uint64_t bytes_left_ = 0;
};

/// Bytes of the device that timing `subjects` subjects of this shape may take, at most.
uint64_t timing_memory(const CompressShape& shape, size_t subjects) {
  const uint64_t fp16 = shape.layer.fp16_token_bytes() * static_cast<uint64_t>(shape.length);
  return subjects * 2 * fp16 * static_cast<uint64_t>(shape.n_layers);
}

struct BenchCompressOptions : BenchOptions {
  int32_t length = CompressShape{}.length;
  int32_t n_layers = CompressShape{}.n_layers;

  CompressShape shape() const { return {.layer = layer, .n_layers = n_layers, .length = length}; }
};

struct BenchCompressRow {
  std::string kv;
  Timing timing;
  uint64_t bytes = 0;
  uint64_t bytes_left = 0;
};

std::vector<BenchCompressRow> measure(TimedDevice& device, const kvq::Context& context,
                                      const BenchCompressOptions& options) {
  const auto make = [&](const std::string& kv) {
    const Spec format = load_layer_spec(context, kv, options.layer);
    if (!format.evicts())
      throw UsageError("--kv " + kv + " evicts nothing: add a method, as in int4+adasnap:4096 or int4+adasnap:25%");
    return TimedCompress(device, context, format, options.shape());
  };
  return measure_subjects("compressing", options.kv, make, time_calls(),
                          [](const std::string& kv, const TimedCompress& subject, const Timing& timing) {
                            return BenchCompressRow{kv, timing, subject.bytes(), subject.bytes_left()};
                          });
}

Json row_json(const BenchCompressRow& row, int32_t n_layers) {
  return {{"kv", row.kv},
          {"microseconds", row.timing.median},
          {"microseconds_a_layer", row.timing.median / n_layers},
          {"min", row.timing.min},
          {"max", row.timing.max},
          {"bytes_before", row.bytes},
          {"bytes_after", row.bytes_left},
          {"repetitions", row.timing.repetitions}};
}

void print_rows(const BenchCompressOptions& options, const std::vector<BenchCompressRow>& rows,
                const BenchMachine& machine) {
  Table table({"format", "bytes\nbefore", "bytes\nafter", "median\nus", "min\nus", "max\nus", "us\na layer"});
  for (const BenchCompressRow& row : rows) {
    table.add_row({row.kv, bytes_text(row.bytes), bytes_text(row.bytes_left)}, timing_cells(row.timing),
                  {number_text(row.timing.median / options.n_layers, 1)});
  }
  print_text("Calls of kvq_compress after a prompt of " + std::to_string(options.length) + " tokens, " +
             std::to_string(options.n_layers) + " layers of " + options.layer.text() + ";\n" +
             machine.text(rows.front().timing.repetitions, "calls") + ".\n\n" + table.text());
}

void run(const BenchCompressOptions& options) {
  const std::unique_ptr<TimedDevice> device = make_bench_device(options.layer, options.compute);
  require_memory(*device, timing_memory(options.shape(), options.kv.size()));
  const kvq::Context context = make_context(options.compute);
  const std::vector<BenchCompressRow> rows = measure(*device, context, options);
  const BenchMachine machine = measure_machine(*device, context);
  if (!options.json) return print_rows(options, rows, machine);
  std::vector<Json> objects;
  for (const BenchCompressRow& row : rows) objects.push_back(row_json(row, options.n_layers));
  print_bench_json(objects, options.with_layer({{"length", options.length}, {"n_layers", options.n_layers}}),
                   options.compute, machine);
}

}  // namespace

void add_bench_compress(Command bench) {
  Command command = bench.add_command("compress", "Time of evicting tokens after a prompt of random keys");
  auto options = std::make_shared<BenchCompressOptions>();
  options->kv = {"int4+adasnap:4096", "int4+snapkv:4096"};
  command.add_number(kContextNames, options->length, 64, 1 << 24, "Tokens of the prompt");
  command.add_number("--layers", options->n_layers, 1, 1024, "Layers, which are compressed together");
  add_bench_options(command, *options);
  command.on_run([options] { run(*options); });
}

}  // namespace cli
