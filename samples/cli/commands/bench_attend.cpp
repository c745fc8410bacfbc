#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/attention_timing.h"
#include "bench/bench.h"
#include "bench/layer_spec.h"
#include "commands/commands.h"
#include "options/usage_error.h"
#include "terminal/output.h"

namespace cli {
namespace {

constexpr BenchLabels kLabels{"kv", "kv_bits", "format", "bits per\nscalar"};

struct Options : BenchOptions {
  int32_t length = AttentionShape{}.length;
  int32_t batch = AttentionShape{}.batch;
  int32_t queries = AttentionShape{}.queries;

  AttentionShape shape() const { return {.layer = layer, .length = length, .batch = batch, .queries = queries}; }
};

void print_result(const Options& options, const std::vector<BenchRow>& rows, const BenchMachine& machine) {
  if (options.json) {
    return print_bench_json(
        bench_rows_json(rows, kLabels, machine),
        options.with_layer({{"length", options.length}, {"batch", options.batch}, {"queries", options.queries}}),
        options.compute, machine);
  }
  print_text("One layer of " + std::to_string(options.layer.q_heads) + " query and " +
             std::to_string(options.layer.kv_heads) + " KV heads of " + std::to_string(options.layer.head_dim) + ", " +
             std::to_string(options.length) + " tokens, batch " + std::to_string(options.batch) +
             (options.queries == 1 ? "" : ", " + std::to_string(options.queries) + " queries") + ";\n" +
             bench_rows_text(rows, kLabels, machine));
}

void run(const Options& options) {
  if (options.queries > options.length) {
    throw UsageError("--queries " + std::to_string(options.queries) + ": there are only " +
                     std::to_string(options.length) + " tokens, the newest of which ask");
  }
  const std::unique_ptr<TimedDevice> device = make_bench_device(options);
  require_memory(*device, timing_memory(*device, options.shape(), options.specs().size()));
  const kvq::Context context = make_context(options.compute);
  const std::vector<BenchRow> rows = measure_rows("attention", options.specs(), [&](const std::string& spec) {
    return TimedAttention(*device, context, load_layer_spec(context, spec, options.layer), options.shape());
  });
  print_result(options, rows, measure_machine(*device, context));
}

}  // namespace

void add_bench_attend(CLI::App& bench) {
  CLI::App* command =
      bench.add_subcommand("attend", "Time of attention on random keys and values, against FP16 in the same run");
  auto options = std::make_shared<Options>();
  options->kv = {"int4"};
  command->add_option("--length", options->length, "Tokens in the cache")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  command->add_option("--batch", options->batch, "Sequences, each of --length tokens")
      ->check(CLI::Range(1, 1 << 12))
      ->capture_default_str();
  command
      ->add_option("--queries", options->queries, "Queries of a sequence: 1 as in decoding, --length as for a prompt")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  add_bench_options(*command, *options);
  command->callback([options] { run(*options); });
}

}  // namespace cli
