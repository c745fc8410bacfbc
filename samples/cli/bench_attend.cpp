#include <memory>

#include "attention_timing.h"
#include "bench.h"
#include "commands.h"
#include "layer_spec.h"
#include "output.h"
#include "table.h"

namespace cli {
namespace {

struct Options : BenchOptions {
  int32_t length = AttentionShape{}.length;
  int32_t batch = AttentionShape{}.batch;

  AttentionShape shape() const { return {.layer = layer, .length = length, .batch = batch}; }
};

struct Row {
  std::string kv;
  Timing timing;
  uint64_t bytes = 0;
  double bits_per_scalar = 0.0;

  double gigabytes_per_second() const { return static_cast<double>(bytes) / timing.median * 1e-3; }
};

struct Measurement {
  std::vector<Row> rows;  // in the order of BenchOptions::specs
  BenchMachine machine;
};

Measurement measure(TimedDevice& device, const Options& options) {
  const llama::ContextHandle context = make_context(options.compute);
  const std::vector<std::string> specs = options.specs();
  Progress progress("attention", kTimingSteps * static_cast<int64_t>(specs.size() + 1));
  std::vector<TimedAttention> subjects;
  for (const std::string& spec : specs) {
    const Spec format = load_layer_spec(context.get(), spec, options.layer);
    subjects.emplace_back(device, context.get(), format, options.shape());
    progress.advance(kTimingSteps);
  }
  const std::vector<Timing> timings = time_interleaved(subjects, progress);
  Measurement result;
  for (size_t i = 0; i < specs.size(); ++i) {
    result.rows.push_back({specs[i], timings[i], subjects[i].bytes(), subjects[i].bits_per_scalar()});
  }
  result.machine = measure_machine(device, context.get());
  return result;
}

nlohmann::ordered_json row_json(const Row& row, const Row& fp16, double bandwidth) {
  nlohmann::ordered_json object;
  object["kv"] = row.kv;
  object["microseconds"] = row.timing.median;
  object["min"] = row.timing.min;
  object["max"] = row.timing.max;
  object["bytes"] = row.bytes;
  object["gigabytes_per_second"] = row.gigabytes_per_second();
  object["kv_bits"] = row.bits_per_scalar;
  object["fp16_microseconds"] = fp16.timing.median;
  object["fp16_min"] = fp16.timing.min;
  object["fp16_max"] = fp16.timing.max;
  object["fp16_bytes"] = fp16.bytes;
  object["fp16_gigabytes_per_second"] = fp16.gigabytes_per_second();
  object["ratio"] = fp16.timing.median / row.timing.median;
  object["read_bandwidth_gigabytes_per_second"] = bandwidth;
  object["bandwidth_fraction"] = row.gigabytes_per_second() / bandwidth;
  object["repetitions"] = row.timing.repetitions;
  return object;
}

void print_result_json(const Options& options, const Measurement& result) {
  std::vector<nlohmann::ordered_json> rows;
  for (size_t i = 1; i < result.rows.size(); ++i) {
    rows.push_back(row_json(result.rows[i], result.rows[0], result.machine.bandwidth));
  }
  print_bench_json(rows, {{"length", options.length}, {"batch", options.batch}}, options, result.machine);
}

void print_result(const Options& options, const Measurement& result) {
  const std::vector<Row>& rows = result.rows;
  print_text("One layer of " + std::to_string(options.layer.q_heads) + " query and " +
             std::to_string(options.layer.kv_heads) + " KV heads of " + std::to_string(options.layer.head_dim) + ", " +
             std::to_string(options.length) + " tokens, batch " + std::to_string(options.batch) + ";\n" +
             result.machine.name + ", " + result.machine.isa + ", " + std::to_string(rows[0].timing.repetitions) +
             " repetitions in turn. Memory gives " + number_text(result.machine.bandwidth, 1) + " GB/s.\n\n");
  Table table({"format", "bits per\nscalar", "bytes", "median\nus", "min\nus", "max\nus", "GB/s", "of memory\nspeed",
               "times faster\nthan FP16"});
  for (const Row& row : rows) {
    table.add_row({row.kv, number_text(row.bits_per_scalar, 2), bytes_text(row.bytes),
                   number_text(row.timing.median, 1), number_text(row.timing.min, 1), number_text(row.timing.max, 1),
                   number_text(row.gigabytes_per_second(), 1),
                   number_text(100.0 * row.gigabytes_per_second() / result.machine.bandwidth, 0) + " %",
                   number_text(rows[0].timing.median / row.timing.median, 2)});
  }
  print_text(table.text());
}

void run(const Options& options) {
  const std::unique_ptr<TimedDevice> device = make_bench_device(options);
  require_memory(*device, timing_memory(*device, options.shape(), options.specs().size()));
  const Measurement result = measure(*device, options);
  if (options.json) return print_result_json(options, result);
  print_result(options, result);
}

}  // namespace

void add_bench_attend(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand(
      "attend", "Time of decoding attention on random keys and values, against FP16 in the same run");
  auto options = std::make_shared<Options>();
  options->kv = {"int4"};
  command->add_option("--length", options->length, "Tokens in the cache")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  command->add_option("--batch", options->batch, "Sequences, each of --length tokens")
      ->check(CLI::Range(1, 1 << 12))
      ->capture_default_str();
  add_bench_options(*command, *options);
  command->callback([options] { run(*options); });
}

}  // namespace cli
