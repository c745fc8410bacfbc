#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/attention_timing.h"
#include "bench/bench.h"
#include "bench/layer_spec.h"
#include "commands/commands.h"
#include "terminal/output.h"

namespace cli {
namespace {

constexpr BenchLabels kLabels{"kv", "kv_bits", "format", "bits per\nscalar"};

struct Options : BenchOptions {
  int32_t length = AttentionShape{}.length;
  int32_t batch = AttentionShape{}.batch;

  AttentionShape shape() const { return {.layer = layer, .length = length, .batch = batch}; }
};

void print_result(const Options& options, const std::vector<BenchRow>& rows, const BenchMachine& machine) {
  if (options.json) {
    return print_bench_json(bench_rows_json(rows, kLabels, machine),
                            options.with_layer({{"length", options.length}, {"batch", options.batch}}), options.compute,
                            machine);
  }
  print_text("One layer of " + std::to_string(options.layer.q_heads) + " query and " +
             std::to_string(options.layer.kv_heads) + " KV heads of " + std::to_string(options.layer.head_dim) + ", " +
             std::to_string(options.length) + " tokens, batch " + std::to_string(options.batch) + ";\n" +
             bench_rows_text(rows, kLabels, machine));
}

void run(const Options& options) {
  const std::unique_ptr<TimedDevice> device = make_bench_device(options);
  require_memory(*device, timing_memory(*device, options.shape(), options.specs().size()));
  const llama::ContextHandle context = make_context(options.compute);
  const std::vector<BenchRow> rows = measure_rows("attention", options.specs(), [&](const std::string& spec) {
    return TimedAttention(*device, context.get(), load_layer_spec(context.get(), spec, options.layer), options.shape());
  });
  print_result(options, rows, measure_machine(*device, context.get()));
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
