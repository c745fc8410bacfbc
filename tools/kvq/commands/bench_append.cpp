#include <memory>
#include <nlohmann/json.hpp>

#include "bench/bench.h"
#include "bench/cache_timing.h"
#include "bench/random_layer.h"
#include "commands/commands.h"
#include "terminal/output.h"

namespace cli {
namespace {

struct BenchAppendOptions : BenchOptions {
  int32_t length = AppendShape{}.length;
  int32_t tokens = AppendShape{}.tokens;
  DtypeOption dtype;

  bool on_gpu() const { return compute.device == "cuda"; }
  AppendShape shape() const {
    return {.layer = layer, .length = length, .tokens = tokens, .dtype = dtype.dtype(compute)};
  }
};

struct BenchAppendRow {
  std::string kv;
  AppendTiming timing;
  uint64_t bytes = 0;

  double gigabytes_per_second() const { return static_cast<double>(bytes) / timing.mean * 1e-3; }
  double tokens_per_second(int32_t tokens) const { return tokens / timing.mean * 1e6; }
};

struct BenchAppendMeasurement {
  std::vector<BenchAppendRow> rows;  // in the order of BenchOptions::specs
  BenchMachine machine;
};

BenchAppendMeasurement measure(TimedDevice& device, const BenchAppendOptions& options) {
  const kvq::Context context = make_context(options.compute);
  const std::vector<std::string> specs = options.specs();
  const AppendShape shape = options.shape();
  Progress progress("appending", kTimingSteps * static_cast<int64_t>(specs.size() + 1));
  const AppendInput input(device, shape);
  std::vector<TimedAppend> subjects;
  for (const std::string& spec : specs) {
    const Spec format = load_layer_spec(context, spec, options.layer);
    subjects.emplace_back(device, context, format, shape, input);
    progress.advance(kTimingSteps);
  }
  const std::vector<AppendTiming> timings = time_interleaved(subjects, shape, progress);
  BenchAppendMeasurement result;
  for (size_t i = 0; i < specs.size(); ++i) result.rows.push_back({specs[i], timings[i], subjects[i].bytes()});
  result.machine = measure_machine(device, context);
  return result;
}

void add_append_figures(Json& object, const std::string& prefix, const BenchAppendRow& row, int32_t tokens) {
  object[prefix + "microseconds"] = row.timing.call.median;
  object[prefix + "mean_microseconds"] = row.timing.mean;
  object[prefix + "min"] = row.timing.call.min;
  object[prefix + "max"] = row.timing.call.max;
  object[prefix + "host_microseconds"] = row.timing.host_mean;
  object[prefix + "bytes"] = row.bytes;
  object[prefix + "gigabytes_per_second"] = row.gigabytes_per_second();
  object[prefix + "tokens_per_second"] = row.tokens_per_second(tokens);
}

Json row_json(const BenchAppendRow& row, const BenchAppendRow& fp16, int32_t tokens, double bandwidth) {
  Json object;
  object["kv"] = row.kv;
  add_append_figures(object, "", row, tokens);
  add_append_figures(object, "fp16_", fp16, tokens);
  object["ratio"] = fp16.timing.mean / row.timing.mean;
  object["read_bandwidth_gigabytes_per_second"] = bandwidth;
  object["bandwidth_fraction"] = row.gigabytes_per_second() / bandwidth;
  object["repetitions"] = row.timing.call.repetitions;
  return object;
}

void print_result_json(const BenchAppendOptions& options, const BenchAppendMeasurement& result) {
  std::vector<Json> rows;
  for (size_t i = 1; i < result.rows.size(); ++i) {
    rows.push_back(row_json(result.rows[i], result.rows[0], options.tokens, result.machine.bandwidth));
  }
  print_bench_json(
      rows,
      options.with_layer(
          {{"length", options.length}, {"tokens", options.tokens}, {"dtype", options.dtype.name(options.compute)}}),
      options.compute, result.machine);
}

std::string tokens_text(int32_t n) { return std::to_string(n) + (n == 1 ? " token" : " tokens"); }

std::string heading(const BenchAppendOptions& options, const BenchAppendMeasurement& result) {
  const AppendShape shape = options.shape();
  std::string text = "Calls that append " + tokens_text(options.tokens) + " in " + options.dtype.name(options.compute) +
                     " to one layer of " + std::to_string(options.layer.kv_heads) + " KV heads of " +
                     std::to_string(options.layer.head_dim) + ", which holds " + tokens_text(options.length) + ";\n" +
                     result.machine.name + ", " + result.machine.isa + ", " +
                     std::to_string(result.rows[0].timing.call.repetitions) + " calls in turn. Memory gives " +
                     number_text(result.machine.bandwidth, 1) + " GB/s.\n";
  if (shape.cycle() > 1) {
    text += "The mean is over " + std::to_string(shape.cycle()) +
            " successive calls, page sealing included; the columns to its right follow from it.\n";
  }
  if (options.on_gpu()) text += "Host: until a call returns, its work issued.\n";
  return text;
}

void print_result(const BenchAppendOptions& options, const BenchAppendMeasurement& result) {
  const std::vector<BenchAppendRow>& rows = result.rows;
  std::vector<std::string> headings{
      "format",   "bytes\na call", "median\nus",       "min\nus",  "max\nus",
      "mean\nus", "GB/s",          "of memory\nspeed", "tokens/s", "times faster\nthan FP16"};
  if (options.on_gpu()) headings.emplace_back("host\nus");
  Table table(std::move(headings));
  std::vector<double> fractions;
  for (const BenchAppendRow& row : rows) {
    fractions.push_back(row.gigabytes_per_second() / result.machine.bandwidth);
    const AppendTiming& timing = row.timing;
    std::vector<std::string> cells{row.kv,
                                   bytes_text(row.bytes),
                                   number_text(timing.call.median, 1),
                                   number_text(timing.call.min, 1),
                                   number_text(timing.call.max, 1),
                                   number_text(timing.mean, 1),
                                   number_text(row.gigabytes_per_second(), 2),
                                   number_text(100.0 * fractions.back(), 0) + " %",
                                   number_text(row.tokens_per_second(options.tokens), 0),
                                   number_text(rows[0].timing.mean / timing.mean, 2)};
    if (options.on_gpu()) cells.push_back(number_text(timing.host_mean, 1));
    table.add_row(std::move(cells));
  }
  print_text(heading(options, result) + "\n" + table.text() + above_memory_speed_text(fractions));
}

void run(const BenchAppendOptions& options) {
  const std::unique_ptr<TimedDevice> device = make_bench_device(options);
  require_memory(*device, timing_memory(*device, options.shape(), options.specs().size()));
  const BenchAppendMeasurement result = measure(*device, options);
  if (options.json) return print_result_json(options, result);
  print_result(options, result);
}

}  // namespace

void add_bench_append(Command bench) {
  Command command =
      bench.add_command("append", "Time of appending random keys and values, against FP16 in the same run");
  auto options = std::make_shared<BenchAppendOptions>();
  options->kv = {"int8", "int4", "int4+hadamard", "int3", "int2", "int2+hadamard"};
  command.add_option(kContextNames, options->length, "Tokens that the layer holds before")
      .range(0, 1 << 24)
      .show_default();
  command
      .add_option("--tokens", options->tokens,
                  "Tokens of a call; fewer than 32 follow each other on one sequence, more are a prompt on a new one")
      .range(1, 1 << 20)
      .show_default();
  add_dtype_option(command, options->dtype);
  add_bench_options(command, *options);
  command.on_run([options] { run(*options); });
}

}  // namespace cli
