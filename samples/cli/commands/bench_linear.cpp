#include <memory>

#include "bench/bench.h"
#include "bench/linear_timing.h"
#include "bench/timing.h"
#include "commands/commands.h"
#include "commands/matrix_shape.h"
#include "commands/usage_error.h"
#include "terminal/output.h"
#include "train/quantization.h"

namespace cli {
namespace {

constexpr const char* kBaseline = "fp16";
constexpr BenchLabels kLabels{"scheme", "bits", "scheme", "bits per\nweight"};

struct Options {
  std::vector<std::string> schemes{"nuq-4"};
  std::string shape = "14336x4096";
  int32_t batch = LinearShape{}.batch;
  ComputeOptions compute;
  bool json = false;

  /// What is measured: the FP16 baseline first, then every --scheme.
  std::vector<std::string> subjects() const {
    std::vector<std::string> result{kBaseline};
    result.insert(result.end(), schemes.begin(), schemes.end());
    return result;
  }
};

struct Measurement {
  std::vector<BenchRow> rows;  // in the order of Options::subjects
  BenchMachine machine;
};

Measurement measure(TimedDevice& device, const Options& options, const LinearShape& shape) {
  const llama::ContextHandle context = make_context(options.compute);
  const std::vector<std::string> schemes = options.subjects();
  Progress progress("linear", kTimingSteps * static_cast<int64_t>(schemes.size() + 1));
  std::vector<TimedLinear> subjects;
  for (const std::string& scheme : schemes) {
    subjects.emplace_back(device, context.get(), scheme, shape);
    progress.advance(kTimingSteps);
  }
  const std::vector<Timing> timings =
      time_in_turn(subjects.size(), progress, [&](size_t i) { return subjects[i].run(); });
  Measurement result;
  for (size_t i = 0; i < schemes.size(); ++i) {
    result.rows.push_back({schemes[i], timings[i], subjects[i].bytes(), subjects[i].bits()});
  }
  result.machine = measure_machine(device, context.get());
  return result;
}

void print_result(const Options& options, const LinearShape& shape, const Measurement& result) {
  if (options.json) {
    return print_bench_json(bench_rows_json(result.rows, kLabels, result.machine),
                            {{"out", shape.out}, {"in", shape.in}, {"batch", shape.batch}}, options.compute,
                            result.machine);
  }
  print_text("A linear layer of " + std::to_string(shape.out) + " outputs and " + std::to_string(shape.in) +
             " inputs, batch " + std::to_string(shape.batch) + ";\n" +
             bench_rows_text(result.rows, kLabels, result.machine));
}

void run(const Options& options) {
  const MatrixShape matrix = parse_matrix_shape(options.shape);
  const LinearShape shape{.out = matrix.out, .in = matrix.in, .batch = options.batch};
  for (const std::string& scheme : options.schemes) check_scheme(scheme);
  if (options.compute.device != "cpu") {
    throw UsageError("--device " + options.compute.device + ": bench linear runs on the CPU only so far");
  }
  const std::unique_ptr<TimedDevice> device = make_timed_device(options.compute);
  require_memory(*device, timing_memory(*device, shape, options.subjects().size()));
  print_result(options, shape, measure(*device, options, shape));
}

}  // namespace

void add_bench_linear(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand(
      "linear", "Time of a linear layer on random weights in few bits, against FP16 in the same run");
  auto options = std::make_shared<Options>();
  command->add_option("--scheme", options->schemes, "As of `kvq quantize`; may be repeated")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->capture_default_str();
  command->add_option("--shape", options->shape, "Outputs and inputs of the layer")->capture_default_str();
  command->add_option("--batch", options->batch, "Rows of inputs")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  add_compute_options(*command, options->compute);
  add_device_options(*command, options->compute);
  command->add_flag("--json", options->json, "Print one JSON object");
  command->callback([options] { run(*options); });
}

}  // namespace cli
