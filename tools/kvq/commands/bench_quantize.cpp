#include <cmath>

#include "bench/random_layer.h"
#include "bench/timing.h"
#include "commands/commands.h"
#include "terminal/progress.h"

namespace cli {
namespace {

constexpr int64_t kTileWeights = 256;
constexpr int64_t kFewRows = 1;

struct BenchQuantizeOptions {
  std::vector<std::string> schemes;
  std::string shape = "512x4096";
  uint64_t seed = 1;
  ComputeOptions compute;
  bool json = false;
};

struct BenchQuantizeRow {
  std::string scheme;
  double nominal = 0.0;
  double bits = 0.0;
  double error = 0.0;
  double seconds = 0.0;

  /// The least error that any code of as many bits can have on normal numbers.
  double bound() const { return std::exp2(-2.0 * nominal); }
};

std::vector<std::string> all_schemes() {
  std::vector<std::string> schemes = kvq::scheme_names();
  std::erase(schemes, "fp16");
  return schemes;
}

BenchQuantizeRow measure(kvq_context* context, const ComputeOptions& compute, const std::string& scheme,
                         const std::vector<float>& weights, const MatrixShape& shape, Progress& progress) {
  auto options = kvq::initialised<qp_quantize_options>();
  options.scheme = scheme.c_str();
  if (compute.device != "cpu") {
    // Kernels are loaded when they run for the first time.
    const auto few = static_cast<size_t>(kFewRows * shape.in);
    kvq::Matrix::quantize(context, options, std::span(weights).first(few), kFewRows, shape.in);
  }
  TrainingBar bar(progress, shape.out * shape.in);
  options.progress = TrainingBar::hook;
  options.progress_user = &bar;
  const Stopwatch watch;
  const kvq::Matrix matrix = kvq::Matrix::quantize(context, options, weights, shape.out, shape.in);
  const double seconds = watch.seconds();
  bar.finish();
  const qp_matrix_info info = matrix.describe();
  return {scheme, kvq::scheme_bits(scheme), info.bits, info.error, seconds};
}

void print_rows(const BenchQuantizeOptions& options, const MatrixShape& shape,
                const std::vector<BenchQuantizeRow>& rows, const kvq::Context& context) {
  const auto weights = static_cast<double>(shape.out * shape.in);
  Figures figures;
  for (const BenchQuantizeRow& row : rows) {
    figures.begin_row();
    figures.add("scheme", "scheme", row.scheme, row.scheme);
    figures.add("", "nominal_bits", row.nominal, 0);
    figures.add("bits per\nweight", "bits", row.bits, 3);
    figures.add("error", "error", row.error, 5);
    figures.add("of the\nbound", "bound", row.bound(), number_text(row.error / row.bound(), 2));
    figures.add("seconds", "seconds", row.seconds, 2);
    figures.add("million weights\na second", "weights_per_second", weights / row.seconds,
                number_text(1e-6 * weights / row.seconds, 2));
    if (options.compute.device != "cpu") continue;
    // Milliseconds of one thread, from which follows what quantizing any matrix takes.
    const double tiles = weights / static_cast<double>(kTileWeights);
    figures.add("ms for 256 weights\non a thread", "tile_milliseconds",
                1e3 * row.seconds * options.compute.threads / tiles, 3);
  }
  if (options.json) {
    return print_json({{"rows", figures.objects()},
                       {"out", shape.out},
                       {"in", shape.in},
                       {"device", options.compute.device},
                       {"threads", options.compute.threads},
                       {"isa", context.describe().isa}});
  }
  print_text("Normally distributed weights, " + std::to_string(shape.out) + " x " + std::to_string(shape.in) + ", " +
             machine_text(context, options.compute) + "; the bound is 2^(-2 bits).\n\n" + figures.table());
}

std::vector<BenchQuantizeRow> measure_all(kvq_context* context, const BenchQuantizeOptions& options,
                                          const std::vector<std::string>& schemes, const MatrixShape& shape) {
  Progress progress("quantizing", static_cast<int64_t>(schemes.size()) * shape.out * shape.in);
  const std::vector<float> weights = normal_numbers(static_cast<size_t>(shape.out * shape.in), options.seed);
  std::vector<BenchQuantizeRow> rows;
  for (const std::string& scheme : schemes) {
    rows.push_back(measure(context, options.compute, scheme, weights, shape, progress));
  }
  return rows;
}

void run(const BenchQuantizeOptions& options) {
  const MatrixShape shape = parse_matrix_shape(options.shape);
  const std::vector<std::string> schemes = options.schemes.empty() ? all_schemes() : options.schemes;
  for (const std::string& scheme : schemes) check_scheme(scheme);
  const kvq::Context context = make_context(options.compute);
  print_rows(options, shape, measure_all(context, options, schemes, shape), context);
}

}  // namespace

void add_bench_quantize(Command bench) {
  Command command =
      bench.add_command("quantize", "Errors of the schemes on normally distributed weights, and the time they take");
  auto options = std::make_shared<BenchQuantizeOptions>();
  add_schemes_option(command, options->schemes, "As of `kvq quantize`; may be repeated (default: all)");
  add_shape_option(command, options->shape);
  add_seed_option(command, options->seed, "Start of the random numbers");
  add_run_options(command, options->compute, options->json);
  command.on_run([options] { run(*options); });
}

}  // namespace cli
