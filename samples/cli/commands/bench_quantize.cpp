#include <CLI/CLI.hpp>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/random_layer.h"
#include "bench/stopwatch.h"
#include "commands/commands.h"
#include "kvq.hpp"
#include "options/compute.h"
#include "options/matrix_options.h"
#include "terminal/output.h"
#include "terminal/progress.h"
#include "terminal/table.h"

namespace cli {
namespace {

constexpr int64_t kTileWeights = 256;

struct Options {
  std::vector<std::string> schemes;
  std::string shape = "512x4096";
  uint64_t seed = 1;
  ComputeOptions compute;
  bool json = false;
};

struct Row {
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

Row measure(kvq_context* context, const std::string& scheme, const std::vector<float>& weights,
            const MatrixShape& shape) {
  auto options = kvq::initialised<qp_quantize_options>();
  options.scheme = scheme.c_str();
  const Stopwatch watch;
  const kvq::Matrix matrix = kvq::Matrix::quantize(context, options, weights, shape.out, shape.in);
  const double seconds = watch.seconds();
  const qp_matrix_info info = matrix.describe();
  return {scheme, kvq::scheme_bits(scheme), info.bits, info.error, seconds};
}

void print_rows(const Options& options, const MatrixShape& shape, const std::vector<Row>& rows, const char* isa) {
  // Of one thread: what quantizing any matrix takes follows from it.
  const double tiles = static_cast<double>(shape.out * shape.in) / static_cast<double>(kTileWeights);
  const auto tile_ms = [&](const Row& row) { return 1e3 * row.seconds * options.compute.threads / tiles; };
  if (options.json) {
    nlohmann::ordered_json object;
    for (const Row& row : rows) {
      object["rows"].push_back({{"scheme", row.scheme},
                                {"nominal_bits", row.nominal},
                                {"bits", row.bits},
                                {"error", row.error},
                                {"bound", row.bound()},
                                {"seconds", row.seconds},
                                {"tile_milliseconds", tile_ms(row)}});
    }
    object["out"] = shape.out;
    object["in"] = shape.in;
    object["threads"] = options.compute.threads;
    object["isa"] = isa;
    return print_json(object);
  }
  Table table({"scheme", "bits per\nweight", "error", "of the\nbound", "seconds", "ms for 256 weights\non a thread"});
  for (const Row& row : rows) {
    table.add_row({row.scheme, number_text(row.bits, 3), number_text(row.error, 5),
                   number_text(row.error / row.bound(), 2), number_text(row.seconds, 2), number_text(tile_ms(row), 3)});
  }
  print_text("Normally distributed weights, " + std::to_string(shape.out) + " x " + std::to_string(shape.in) + ", " +
             std::to_string(options.compute.threads) + " threads; the bound is 2^(-2 bits).\n\n" + table.text());
}

void run(const Options& options) {
  const MatrixShape shape = parse_matrix_shape(options.shape);
  const std::vector<std::string> schemes = options.schemes.empty() ? all_schemes() : options.schemes;
  for (const std::string& scheme : schemes) check_scheme(scheme);
  const kvq::Context context = make_context(options.compute);
  const std::vector<float> weights = normal_numbers(static_cast<size_t>(shape.out * shape.in), options.seed);
  Progress progress("quantizing", static_cast<int64_t>(schemes.size()));
  std::vector<Row> rows;
  for (const std::string& scheme : schemes) {
    rows.push_back(measure(context, scheme, weights, shape));
    progress.advance(1);
  }
  print_rows(options, shape, rows, context.describe().isa);
}

}  // namespace

void add_bench_quantize(CLI::App& bench) {
  CLI::App* command =
      bench.add_subcommand("quantize", "Errors of the schemes on normally distributed weights, and the time they take");
  auto options = std::make_shared<Options>();
  add_schemes_option(*command, options->schemes, "As of `kvq quantize`; may be repeated (default: all)");
  add_shape_option(*command, options->shape);
  command->add_option("--seed", options->seed, "Start of the random numbers")->capture_default_str();
  add_compute_options(*command, options->compute);
  add_json_flag(*command, options->json);
  command->callback([options] { run(*options); });
}

}  // namespace cli
