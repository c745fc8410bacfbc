#include "bench.h"

#include "output.h"
#include "spec.h"
#include "usage_error.h"

namespace cli {

std::vector<std::string> BenchOptions::specs() const {
  std::vector<std::string> result{"fp16"};
  result.insert(result.end(), kv.begin(), kv.end());
  return result;
}

void add_bench_options(CLI::App& command, BenchOptions& options) {
  command
      .add_option("--kv", options.kv,
                  std::string(kSpecHelp) +
                      ", commvq-1 or commvq-2, both optionally with ,head and "
                      ",attention=tables, rebuild or decode, or moqae; may be repeated")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->capture_default_str();
  command.add_option("--heads", options.layer.q_heads, "Query heads")
      ->check(CLI::Range(1, 1 << 14))
      ->capture_default_str();
  command.add_option("--kv-heads", options.layer.kv_heads, "KV heads")
      ->check(CLI::Range(1, 1 << 12))
      ->capture_default_str();
  command.add_option("--head-dim", options.layer.head_dim, "Channels of a head")
      ->check(CLI::Range(8, 256))
      ->capture_default_str();
  add_compute_options(command, options.compute);
  add_device_options(command, options.compute);
  command.add_flag("--json", options.json, "Print one JSON object");
}

std::unique_ptr<TimedDevice> make_bench_device(const BenchOptions& options) {
  const LayerShape& layer = options.layer;
  if (layer.q_heads % layer.kv_heads != 0) {
    throw UsageError("--heads " + std::to_string(layer.q_heads) + " is not a multiple of --kv-heads " +
                     std::to_string(layer.kv_heads));
  }
  return make_timed_device(options.compute);
}

void require_memory(const TimedDevice& device, uint64_t needed) {
  const uint64_t present = device.memory_bytes();
  if (needed / 4 > present / 5) {
    throw llama::Error("this shape may take " + bytes_text(needed) + " of memory, and there is " + bytes_text(present));
  }
}

BenchMachine measure_machine(TimedDevice& device, const kvq_context* context) {
  return {.name = device.name(), .isa = describe(context).isa, .bandwidth = device.memory_bandwidth() * 1e-9};
}

void print_bench_json(const std::vector<nlohmann::ordered_json>& rows, const nlohmann::ordered_json& parameters,
                      const BenchOptions& options, const BenchMachine& machine) {
  nlohmann::ordered_json object;
  if (rows.size() == 1) {
    object = rows.front();
  } else {
    object["rows"] = rows;
  }
  object.update(parameters);
  object["heads"] = options.layer.q_heads;
  object["kv_heads"] = options.layer.kv_heads;
  object["head_dim"] = options.layer.head_dim;
  object["device"] = options.compute.device;
  object["device_name"] = machine.name;
  object["threads"] = options.compute.threads;
  object["isa"] = machine.isa;
  print_json(object);
}

}  // namespace cli
