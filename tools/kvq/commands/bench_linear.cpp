#include "bench/bench.h"
#include "bench/timed_calls.h"
#include "commands/commands.h"

namespace cli {
namespace {

constexpr BenchLabels kLinearLabels{"scheme", "bits", "scheme", "bits per\nweight"};

struct BenchLinearOptions {
  std::vector<std::string> schemes{"nuq-4"};
  std::string shape = "14336x4096";
  int32_t batch = LinearShape{}.batch;
  DtypeOption dtype;
  bool single_calls = false;
  std::string tuning;
  ComputeOptions compute;
  bool json = false;

  LinearShape linear(const TimedDevice& device) const {
    const MatrixShape matrix = parse_matrix_shape(shape);
    return {.out = matrix.out,
            .in = matrix.in,
            .batch = batch,
            .dtype = dtype.dtype(compute),
            .recorded = device.records() && !single_calls};
  }
};

void print_result(const BenchLinearOptions& options, const LinearShape& shape, const std::vector<BenchRow>& rows,
                  const BenchMachine& machine) {
  if (options.json) {
    return print_bench_json(bench_rows_json(rows, kLinearLabels, machine),
                            {{"out", shape.out},
                             {"in", shape.in},
                             {"batch", shape.batch},
                             {"dtype", options.dtype.name(options.compute)},
                             {"timing", shape.recorded ? "graph" : "calls"}},
                            options.compute, machine);
  }
  print_text("A linear layer of " + std::to_string(shape.out) + " outputs and " + std::to_string(shape.in) +
             " inputs, batch " + std::to_string(shape.batch) + ", in " + options.dtype.name(options.compute) +
             (shape.recorded ? ", calls in a CUDA graph" : "") + ";\n" + bench_rows_text(rows, kLinearLabels, machine));
}

void run(const BenchLinearOptions& options) {
  parse_matrix_shape(options.shape);
  for (const std::string& scheme : options.schemes) check_scheme(scheme);
  const std::unique_ptr<TimedDevice> device = make_timed_device(options.compute);
  const LinearShape shape = options.linear(*device);
  const std::vector<std::string> schemes = with_baseline(options.schemes);
  require_memory(*device, timing_memory(*device, shape, schemes.size()));
  const kvq::Context context = make_context(options.compute);
  const Tuning tuning(context, options.tuning);
  const std::vector<BenchRow> rows = measure_rows("linear", schemes, [&](const std::string& scheme) {
    return TimedLinear(*device, context, tuning, scheme, shape);
  });
  tuning.keep();
  print_result(options, shape, rows, measure_machine(*device, context));
}

}  // namespace

void add_bench_linear(Command bench) {
  Command command =
      bench.add_command("linear", "Time of a linear layer on random weights in few bits, against FP16 in the same run");
  auto options = std::make_shared<BenchLinearOptions>();
  add_schemes_option(command, options->schemes, "As of `kvq quantize`; may be repeated").show_default();
  add_shape_option(command, options->shape);
  command.add_number("--batch", options->batch, 1, 1 << 16, "Rows of inputs");
  add_dtype_option(command, options->dtype);
  command.add_flag("--single-calls", options->single_calls,
                   "On a GPU: time each call by itself, after the L2 cache was emptied, instead of many calls on "
                   "different matrices in one CUDA graph, as in a model's step");
  add_tuning_option(command, options->tuning);
  add_run_options(command, options->compute, options->json);
  command.on_run([options] { run(*options); });
}

}  // namespace cli
