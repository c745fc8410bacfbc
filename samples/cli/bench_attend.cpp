#include <memory>

#include "attention_timing.h"
#include "commands.h"
#include "compute.h"
#include "output.h"
#include "spec.h"
#include "table.h"
#include "usage_error.h"

namespace cli {
namespace {

struct Options {
  std::vector<std::string> kv{"int4"};
  AttentionShape shape;
  ComputeOptions compute;
  bool json = false;
};

struct Row {
  std::string kv;
  Timing timing;
  uint64_t bytes = 0;
  double bits_per_scalar = 0.0;

  double gigabytes_per_second() const { return static_cast<double>(bytes) / timing.median * 1e-3; }
};

struct Measurement {
  std::vector<Row> rows;  // the FP16 baseline first, then one for every --kv
  std::string device;
  std::string isa;
  double read_bandwidth = 0.0;  // GB/s
};

Measurement measure(TimedDevice& device, const Options& options) {
  const llama::ContextHandle context = make_context(options.compute);
  std::vector<std::string> specs{"fp16"};
  specs.insert(specs.end(), options.kv.begin(), options.kv.end());
  Progress progress("attention", kTimingSteps * static_cast<int64_t>(specs.size() + 1));
  std::vector<TimedAttention> subjects;
  for (const std::string& spec : specs) {
    const llama::PolicyHandle policy = load_spec(context.get(), spec);
    subjects.emplace_back(device, context.get(), policy.get(), options.shape);
    progress.advance(kTimingSteps);
  }
  const std::vector<Timing> timings = time_interleaved(subjects, progress);
  Measurement result;
  for (size_t i = 0; i < specs.size(); ++i) {
    result.rows.push_back({specs[i], timings[i], subjects[i].bytes(), subjects[i].bits_per_scalar()});
  }
  result.isa = describe(context.get()).isa;
  result.device = device.name();
  result.read_bandwidth = device.memory_bandwidth() * 1e-9;
  return result;
}

nlohmann::ordered_json row_json(const Row& row, const Row& fp16, double bandwidth) {
  nlohmann::ordered_json object;
  object["kv"] = row.kv;
  object["microseconds"] = row.timing.median;
  object["min"] = row.timing.min;
  object["max"] = row.timing.max;
  object["bytes"] = row.bytes;
  object["gigabytes_per_second"] = row.gigabytes_per_second();
  object["kv_bits"] = row.bits_per_scalar;
  object["fp16_microseconds"] = fp16.timing.median;
  object["fp16_min"] = fp16.timing.min;
  object["fp16_max"] = fp16.timing.max;
  object["fp16_bytes"] = fp16.bytes;
  object["fp16_gigabytes_per_second"] = fp16.gigabytes_per_second();
  object["ratio"] = fp16.timing.median / row.timing.median;
  object["read_bandwidth_gigabytes_per_second"] = bandwidth;
  object["bandwidth_fraction"] = row.gigabytes_per_second() / bandwidth;
  object["repetitions"] = row.timing.repetitions;
  return object;
}

void print_result_json(const Options& options, const Measurement& result) {
  nlohmann::ordered_json object;
  const std::vector<Row>& rows = result.rows;
  if (rows.size() == 2) {
    object = row_json(rows[1], rows[0], result.read_bandwidth);
  } else {
    object["rows"] = nlohmann::ordered_json::array();
    for (size_t i = 1; i < rows.size(); ++i)
      object["rows"].push_back(row_json(rows[i], rows[0], result.read_bandwidth));
  }
  object["length"] = options.shape.length;
  object["heads"] = options.shape.q_heads;
  object["kv_heads"] = options.shape.kv_heads;
  object["head_dim"] = options.shape.head_dim;
  object["batch"] = options.shape.batch;
  object["device"] = options.compute.device;
  object["device_name"] = result.device;
  object["threads"] = options.compute.threads;
  object["isa"] = result.isa;
  print_json(object);
}

void print_result(const Options& options, const Measurement& result) {
  const AttentionShape& shape = options.shape;
  const std::vector<Row>& rows = result.rows;
  print_text("One layer of " + std::to_string(shape.q_heads) + " query and " + std::to_string(shape.kv_heads) +
             " KV heads of " + std::to_string(shape.head_dim) + ", " + std::to_string(shape.length) +
             " tokens, batch " + std::to_string(shape.batch) + ";\n" + result.device + ", " + result.isa + ", " +
             std::to_string(rows[0].timing.repetitions) + " repetitions in turn. Memory gives " +
             number_text(result.read_bandwidth, 1) + " GB/s.\n\n");
  Table table({"format", "bits per\nscalar", "bytes", "median\nus", "min\nus", "max\nus", "GB/s", "of memory\nspeed",
               "times faster\nthan FP16"});
  for (const Row& row : rows) {
    table.add_row({row.kv, number_text(row.bits_per_scalar, 2), bytes_text(row.bytes),
                   number_text(row.timing.median, 1), number_text(row.timing.min, 1), number_text(row.timing.max, 1),
                   number_text(row.gigabytes_per_second(), 1),
                   number_text(100.0 * row.gigabytes_per_second() / result.read_bandwidth, 0) + " %",
                   number_text(rows[0].timing.median / row.timing.median, 2)});
  }
  print_text(table.text());
}

void check_memory(const TimedDevice& device, const Options& options) {
  const uint64_t needed = timing_memory(device, options.shape, options.kv.size() + 1);
  const uint64_t present = device.memory_bytes();
  if (needed / 4 > present / 5) {
    throw llama::Error("this shape may take " + bytes_text(needed) + " of memory, and there is " + bytes_text(present));
  }
}

void run(const Options& options) {
  const AttentionShape& shape = options.shape;
  if (shape.q_heads % shape.kv_heads != 0) {
    throw UsageError("--heads " + std::to_string(shape.q_heads) + " is not a multiple of --kv-heads " +
                     std::to_string(shape.kv_heads));
  }
  const std::unique_ptr<TimedDevice> device = make_timed_device(options.compute);
  check_memory(*device, options);
  const Measurement result = measure(*device, options);
  if (options.json) return print_result_json(options, result);
  print_result(options, result);
}

}  // namespace

void add_bench_attend(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand(
      "attend", "Time of decoding attention on random keys and values, against FP16 in the same run");
  auto options = std::make_shared<Options>();
  command->add_option("--kv", options->kv, std::string(kSpecHelp) + "; may be repeated")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->capture_default_str();
  command->add_option("--length", options->shape.length, "Tokens in the cache")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  command->add_option("--heads", options->shape.q_heads, "Query heads")
      ->check(CLI::Range(1, 1 << 14))
      ->capture_default_str();
  command->add_option("--kv-heads", options->shape.kv_heads, "KV heads")
      ->check(CLI::Range(1, 1 << 12))
      ->capture_default_str();
  command->add_option("--head-dim", options->shape.head_dim, "Channels of a head")
      ->check(CLI::Range(8, 256))
      ->capture_default_str();
  command->add_option("--batch", options->shape.batch, "Sequences, each of --length tokens")
      ->check(CLI::Range(1, 1 << 12))
      ->capture_default_str();
  add_compute_options(*command, options->compute);
  add_device_options(*command, options->compute);
  command->add_flag("--json", options->json, "Print one JSON object");
  command->callback([options] { run(*options); });
}

}  // namespace cli
