#include <algorithm>
#include <type_traits>

#include "bench/bench.h"
#include "bench/timed_calls.h"
#include "bench/timed_pool.h"
#include "commands/commands.h"

namespace cli {
namespace {

constexpr int32_t kLeastRagged = 64;
constexpr BenchLabels kAttendLabels{"kv", "kv_bits", "format", "bits per\nscalar"};

struct BenchAttendOptions : BenchOptions {
  std::vector<int32_t> lengths{AttentionShape{}.length};
  int32_t batch = AttentionShape{}.batch;
  int32_t queries = AttentionShape{}.queries;
  bool extends = false;
  bool tree = false;
  bool pool = false;
  bool ragged = false;

  AttentionShape shape(int32_t length) const {
    return {.layer = layer, .length = length, .batch = batch, .queries = queries};
  }
  /// What is measured: with --tree each format once more.
  std::vector<std::string> subjects() const {
    std::vector<std::string> all;
    for (const std::string& spec : specs()) {
      all.push_back(spec);
      if (tree) all.push_back(spec + kTree);
    }
    return all;
  }

  inline static const std::string kTree = " tree";
};

struct BenchAttendMeasurement {
  int32_t length;
  std::vector<BenchRow> rows;
};

void print_result_json(const BenchAttendOptions& options, const std::vector<BenchAttendMeasurement>& measured,
                       const BenchMachine& machine) {
  const bool several = measured.size() > 1;
  Json parameters = {{"batch", options.batch}, {"queries", options.queries}, {"extend", options.extends},
                     {"tree", options.tree},   {"pool", options.pool},       {"ragged", options.ragged}};
  std::vector<Json> rows;
  for (const BenchAttendMeasurement& each : measured) {
    for (Json& row : bench_rows_json(each.rows, kAttendLabels, machine)) {
      (several ? row : parameters)["length"] = each.length;
      rows.push_back(std::move(row));
    }
  }
  print_bench_json(rows, options.with_layer(parameters), options.compute, machine);
}

void print_result(const BenchAttendOptions& options, const std::vector<BenchAttendMeasurement>& measured,
                  const BenchMachine& machine) {
  if (options.json) return print_result_json(options, measured, machine);
  std::string text;
  for (const BenchAttendMeasurement& each : measured) {
    text += (text.empty() ? "" : "\n") + std::string("One layer of ") + options.layer.text() + ", " +
            std::to_string(each.length) + " tokens, batch " + std::to_string(options.batch) +
            (options.queries == 1 ? "" : ", " + std::to_string(options.queries) + " queries") +
            (options.extends ? ", whose tokens are appended in the same call" : "") +
            (options.pool ? ", in blocks of a pool" : "") + (options.ragged ? ", from 64 tokens on" : "") + ";\n" +
            bench_rows_text(each.rows, kAttendLabels, machine);
    for (size_t i = 1; options.tree && i < each.rows.size(); i += 2) {
      const double ratio = each.rows[i].timing.median / each.rows[i - 1].timing.median;
      text += each.rows[i - 1].name + ": a tree of " + std::to_string(options.queries) + " tokens takes " +
              number_text(ratio, 2) + " times as long as a chain\n";
    }
  }
  print_text(text);
}

void check_queries(const BenchAttendOptions& options) {
  if (options.tree && (options.extends || options.queries > KVQ_MAX_MASK_SLOTS)) {
    throw UsageError(options.extends
                         ? "--tree measures attention alone, without --extend"
                         : "--tree: a mask covers at most " + std::to_string(KVQ_MAX_MASK_SLOTS) +
                               " tokens, less than the " + std::to_string(options.queries) + " of --queries");
  }
  if (options.tree && options.pool) throw UsageError("--tree measures attention over a cache, without --pool");
  if (options.ragged && !options.pool) throw UsageError("--ragged takes --pool");
  const int32_t shortest = options.ragged ? kLeastRagged : std::ranges::min(options.lengths);
  if (options.queries <= shortest) return;
  throw UsageError("--queries " + std::to_string(options.queries) + ": there are only " + std::to_string(shortest) +
                   " tokens, the newest of which ask");
}

void check_values(const LayerShape& layer) {
  if (!layer.latent || (layer.value_dim != 0 && layer.value_dim < layer.head_dim)) return;
  throw UsageError("--latent takes --value-dim, less than the " + std::to_string(layer.head_dim) + " of --head-dim");
}

void run(const BenchAttendOptions& options) {
  check_values(options.layer);
  check_queries(options);
  const std::unique_ptr<TimedDevice> device = make_bench_device(options.layer, options.compute);
  const AttentionShape longest = options.shape(std::ranges::max(options.lengths));
  const size_t subjects = options.subjects().size();
  require_memory(*device, options.pool ? timing_memory(*device, PoolShape{longest, options.ragged}, subjects)
                                       : timing_memory(*device, longest, subjects));
  const kvq::Context context = make_context(options.compute);
  std::vector<BenchAttendMeasurement> measured;
  for (const int32_t length : options.lengths) {
    const auto measure = [&]<class Subject>(std::type_identity<Subject>) {
      return measure_rows(
          "attention over " + std::to_string(length) + " tokens", options.subjects(), [&](const std::string& name) {
            AttentionShape shape = options.shape(length);
            shape.tree = name.ends_with(BenchAttendOptions::kTree);
            const std::string spec = name.substr(0, name.size() - (shape.tree ? BenchAttendOptions::kTree.size() : 0));
            const Spec format = load_layer_spec(context, spec, options.layer);
            if constexpr (std::is_same_v<Subject, TimedPool>) {
              return Subject(*device, context, format, {shape, options.ragged, options.extends});
            } else {
              return Subject(*device, context, format, shape);
            }
          });
    };
    measured.push_back({length, options.pool      ? measure(std::type_identity<TimedPool>())
                                : options.extends ? measure(std::type_identity<TimedExtend>())
                                                  : measure(std::type_identity<TimedAttention>())});
  }
  const BenchMachine machine = measure_machine(*device, context);
  print_result(options, measured, machine);
}

}  // namespace

void add_bench_attend(Command bench) {
  Command command =
      bench.add_command("attend", "Time of attention on random keys and values, against FP16 in the same run");
  auto options = std::make_shared<BenchAttendOptions>();
  options->kv = {"int4"};
  command.add_option(kContextNames, options->lengths, "Tokens in the cache; several, separated by commas, in turn")
      .separated_by(',')
      .range(1, 1 << 24)
      .show_default();
  command.add_number("--batch", options->batch, 1, 1 << 12, "Sequences, each of --context tokens");
  command.add_number("--queries", options->queries, 1, 1 << 16,
                     "Queries of a sequence: 1 as in decoding, --context as for a prompt");
  command.add_flag("--extend", options->extends, "Append the queries' tokens in the same call (kvq_extend)");
  command.add_flag("--pool", options->pool,
                   "Over pages in blocks of the caller's memory, by a block table (kvq_pool_attend, kvq_pool_extend)");
  command.add_flag("--ragged", options->ragged,
                   "With --pool: sequences of 64 tokens to --context, evenly on a logarithmic scale");
  command.add_flag("--tree", options->tree,
                   "Measure each format also with the queries' tokens as a random draft tree, by a mask");
  add_bench_options(command, *options);
  add_value_options(command, options->layer);
  command.on_run([options] { run(*options); });
}

}  // namespace cli
