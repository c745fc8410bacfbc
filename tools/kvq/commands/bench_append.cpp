#include "bench/bench.h"
#include "bench/timed_calls.h"
#include "commands/commands.h"

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

using TimedAppends = std::vector<std::unique_ptr<TimedAppend>>;

std::vector<AppendTiming> time_appends(const TimedAppends& subjects, const AppendShape& shape, Progress& progress) {
  // Warm-up, a whole cycle: forks get pages of their own and room in their lists, which long sequences have.
  for (const auto& subject : subjects) {
    for (int32_t call = 0; call < shape.cycle(); ++call) subject->run();
    subject->clear();
  }
  repeat_in_turn(subjects.size(), shape.cycle(), progress, [&](size_t i) { subjects[i]->run(); });
  std::vector<AppendTiming> timings;
  for (const auto& subject : subjects) timings.push_back(subject->timing());
  return timings;
}

std::vector<BenchAppendRow> measure(TimedDevice& device, kvq_context* context, const BenchAppendOptions& options) {
  const AppendShape shape = options.shape();
  const AppendInput input(device, shape);
  return measure_subjects(
      "appending", options.specs(),
      [&](const std::string& spec) {
        return TimedAppend(device, context, load_layer_spec(context, spec, options.layer), shape, input);
      },
      [&](const TimedAppends& subjects, Progress& progress) { return time_appends(subjects, shape, progress); },
      [](const std::string& spec, const TimedAppend& subject, const AppendTiming& timing) {
        return BenchAppendRow{spec, timing, subject.bytes()};
      });
}

Json figures_of(const BenchAppendRow& row, int32_t tokens) {
  return {{"microseconds", row.timing.call.median},
          {"mean_microseconds", row.timing.mean},
          {"min", row.timing.call.min},
          {"max", row.timing.call.max},
          {"host_microseconds", row.timing.host_mean},
          {"bytes", row.bytes},
          {"gigabytes_per_second", row.gigabytes_per_second()},
          {"tokens_per_second", row.tokens_per_second(tokens)}};
}

void print_result_json(const BenchAppendOptions& options, const std::vector<BenchAppendRow>& rows,
                       const BenchMachine& machine) {
  const BenchAppendRow& fp16 = rows.front();
  std::vector<Json> objects;
  for (const BenchAppendRow& row : std::span(rows).subspan(1)) {
    Json& object = objects.emplace_back(Json{{"kv", row.kv}});
    object.update(figures_of(row, options.tokens));
    add_baseline(object, figures_of(fp16, options.tokens), fp16.timing.mean / row.timing.mean, machine);
    object["bandwidth_fraction"] = row.gigabytes_per_second() / machine.bandwidth;
    object["repetitions"] = row.timing.call.repetitions;
  }
  print_bench_json(
      objects,
      options.with_layer(
          {{"length", options.length}, {"tokens", options.tokens}, {"dtype", options.dtype.name(options.compute)}}),
      options.compute, machine);
}

std::string tokens_text(int32_t n) { return std::to_string(n) + (n == 1 ? " token" : " tokens"); }

std::string heading(const BenchAppendOptions& options, int32_t calls, const BenchMachine& machine) {
  std::string text = "Calls that append " + tokens_text(options.tokens) + " in " + options.dtype.name(options.compute) +
                     " to one layer of " + std::to_string(options.layer.kv_heads) + " KV heads of " +
                     std::to_string(options.layer.head_dim) + ", which holds " + tokens_text(options.length) + ";\n" +
                     machine.text(calls, "calls") + machine.memory_text();
  if (const int32_t cycle = options.shape().cycle(); cycle > 1) {
    text += "The mean is over " + std::to_string(cycle) +
            " successive calls, page sealing included; the columns to its right follow from it.\n";
  }
  if (options.on_gpu()) text += "Host: until a call returns, its work issued.\n";
  return text;
}

void print_result(const BenchAppendOptions& options, const std::vector<BenchAppendRow>& rows,
                  const BenchMachine& machine) {
  std::vector<std::string> headings{
      "format",   "bytes\na call", "median\nus",       "min\nus",  "max\nus",
      "mean\nus", "GB/s",          "of memory\nspeed", "tokens/s", "times faster\nthan FP16"};
  if (options.on_gpu()) headings.emplace_back("host\nus");
  Table table(std::move(headings));
  std::vector<double> fractions;
  for (const BenchAppendRow& row : rows) {
    fractions.push_back(row.gigabytes_per_second() / machine.bandwidth);
    std::vector<std::string> rates{number_text(row.timing.mean, 1), number_text(row.gigabytes_per_second(), 2),
                                   number_text(100.0 * fractions.back(), 0) + " %",
                                   number_text(row.tokens_per_second(options.tokens), 0),
                                   number_text(rows[0].timing.mean / row.timing.mean, 2)};
    if (options.on_gpu()) rates.push_back(number_text(row.timing.host_mean, 1));
    table.add_row({row.kv, bytes_text(row.bytes)}, timing_cells(row.timing.call), rates);
  }
  print_text(heading(options, rows[0].timing.call.repetitions, machine) + "\n" + table.text() +
             above_memory_speed_text(fractions));
}

void run(const BenchAppendOptions& options) {
  const std::unique_ptr<TimedDevice> device = make_bench_device(options.layer, options.compute);
  require_memory(*device, timing_memory(*device, options.shape(), options.specs().size()));
  const kvq::Context context = make_context(options.compute);
  const std::vector<BenchAppendRow> rows = measure(*device, context, options);
  const BenchMachine machine = measure_machine(*device, context);
  if (options.json) return print_result_json(options, rows, machine);
  print_result(options, rows, machine);
}

}  // namespace

void add_bench_append(Command bench) {
  Command command =
      bench.add_command("append", "Time of appending random keys and values, against FP16 in the same run");
  auto options = std::make_shared<BenchAppendOptions>();
  options->kv = {"int8", "int4", "int4+hadamard", "int3", "int2", "int2+hadamard"};
  command.add_number(kContextNames, options->length, 0, 1 << 24, "Tokens that the layer holds before");
  command.add_number(
      "--tokens", options->tokens, 1, 1 << 20,
      "Tokens of a call; fewer than 32 follow each other on one sequence, more are a prompt on a new one");
  add_dtype_option(command, options->dtype);
  add_bench_options(command, *options);
  command.on_run([options] { run(*options); });
}

}  // namespace cli
