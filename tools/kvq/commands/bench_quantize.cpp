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

/// Every scheme but FP16.
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

/// Milliseconds of one thread, from which follows what quantizing any matrix takes.
double tile_milliseconds(const BenchQuantizeOptions& options, const MatrixShape& shape, const BenchQuantizeRow& row) {
  const double tiles = static_cast<double>(shape.out * shape.in) / static_cast<double>(kTileWeights);
  return 1e3 * row.seconds * options.compute.threads / tiles;
}

void print_rows_json(const BenchQuantizeOptions& options, const MatrixShape& shape,
                     const std::vector<BenchQuantizeRow>& rows, const char* isa) {
  Json object;
  for (const BenchQuantizeRow& row : rows) {
    Json each = {{"scheme", row.scheme},
                 {"nominal_bits", row.nominal},
                 {"bits", row.bits},
                 {"error", row.error},
                 {"bound", row.bound()},
                 {"seconds", row.seconds},
                 {"weights_per_second", static_cast<double>(shape.out * shape.in) / row.seconds}};
    if (options.compute.device == "cpu") each["tile_milliseconds"] = tile_milliseconds(options, shape, row);
    object["rows"].push_back(std::move(each));
  }
  object["out"] = shape.out;
  object["in"] = shape.in;
  object["device"] = options.compute.device;
  object["threads"] = options.compute.threads;
  object["isa"] = isa;
  print_json(object);
}

void print_rows(const BenchQuantizeOptions& options, const MatrixShape& shape,
                const std::vector<BenchQuantizeRow>& rows, const kvq::Context& context) {
  if (options.json) return print_rows_json(options, shape, rows, context.describe().isa);
  const bool on_cpu = options.compute.device == "cpu";
  std::vector<std::string> titles = {"scheme",        "bits per\nweight", "error",
                                     "of the\nbound", "seconds",          "million weights\na second"};
  if (on_cpu) titles.emplace_back("ms for 256 weights\non a thread");
  Table table(titles);
  for (const BenchQuantizeRow& row : rows) {
    const double weights = static_cast<double>(shape.out * shape.in);
    std::vector<std::string> cells = {row.scheme,
                                      number_text(row.bits, 3),
                                      number_text(row.error, 5),
                                      number_text(row.error / row.bound(), 2),
                                      number_text(row.seconds, 2),
                                      number_text(1e-6 * weights / row.seconds, 2)};
    if (on_cpu) cells.push_back(number_text(tile_milliseconds(options, shape, row), 3));
    table.add_row(cells);
  }
  print_text("Normally distributed weights, " + std::to_string(shape.out) + " x " + std::to_string(shape.in) + ", " +
             machine_text(context, options.compute) + "; the bound is 2^(-2 bits).\n\n" + table.text());
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
