#include "bench/bench.h"

#include <algorithm>

#include "llama/error.h"
#include "options/spec.h"

namespace cli {
namespace {

Json figures_of(const BenchRow& row) {
  return {{"microseconds", row.timing.median},
          {"min", row.timing.min},
          {"max", row.timing.max},
          {"bytes", row.bytes},
          {"gigabytes_per_second", row.gigabytes_per_second()}};
}

}  // namespace

std::vector<std::string> with_baseline(const std::vector<std::string>& names) {
  std::vector<std::string> result{"fp16"};
  result.insert(result.end(), names.begin(), names.end());
  return result;
}

Json BenchOptions::with_layer(Json parameters) const {
  parameters["heads"] = layer.q_heads;
  parameters["kv_heads"] = layer.kv_heads;
  parameters["head_dim"] = layer.head_dim;
  if (layer.value_dim != 0) parameters["value_dim"] = layer.value_dim;
  if (layer.latent) parameters["latent"] = true;
  return parameters;
}

void add_layer_options(Command command, LayerShape& layer) {
  command.add_number("--heads", layer.q_heads, 1, 1 << 14, "Query heads");
  command.add_number("--kv-heads", layer.kv_heads, 1, 1 << 12, "KV heads");
  command.add_number("--head-dim", layer.head_dim, 8, 576, "Channels of a head");
}

void add_value_options(Command command, LayerShape& layer) {
  command.add_number("--value-dim", layer.value_dim, 0, 512,
                     "Channels of values; 0: --head-dim, which may be up to 512");
  command.add_flag("--latent", layer.latent,
                   "Values are the first --value-dim channels of keys and stored once, as in latent attention (MLA)");
}

std::string DtypeOption::name(const ComputeOptions& compute) const {
  if (!given.empty()) return given;
  return compute.device == "cuda" ? "f16" : "f32";
}

kvq_dtype DtypeOption::dtype(const ComputeOptions& compute) const {
  const std::string wanted = name(compute);
  return wanted == "f32" ? KVQ_F32 : (wanted == "f16" ? KVQ_F16 : KVQ_BF16);
}

void add_dtype_option(Command command, DtypeOption& dtype) {
  command.add_option("--dtype", dtype.given, "Element type of the tensors (default: f16 on cuda, f32 on cpu)")
      .one_of({"f32", "f16", "bf16"});
}

void add_bench_options(Command command, BenchOptions& options) {
  command
      .add_option("--kv", options.kv,
                  spec_help() +
                      ", commvq-1 or commvq-2, both optionally with ,head and "
                      ",attention=tables or rebuild, gain-shape formats with a number of centres (gs2-256), or "
                      "moqae or moqae-BITS, all trained on random numbers, and others with @scales for scales of "
                      "channels, which none has here without; may be repeated")
      .repeatable()
      .show_default();
  add_layer_options(command, options.layer);
  add_run_options(command, options.compute, options.json);
}

std::vector<Json> bench_rows_json(const std::vector<BenchRow>& rows, const BenchLabels& labels,
                                  const BenchMachine& machine) {
  const BenchRow& fp16 = rows.front();
  std::vector<Json> objects;
  for (const BenchRow& row : std::span(rows).subspan(1)) {
    Json object = {{labels.name_field, row.name}};
    object.update(figures_of(row));
    object[labels.bits_field] = row.bits;
    add_baseline(object, figures_of(fp16), fp16.timing.median / row.timing.median, machine);
    object["bandwidth_fraction"] = row.gigabytes_per_second() / machine.bandwidth;
    object["repetitions"] = row.timing.repetitions;
    objects.push_back(std::move(object));
  }
  return objects;
}

void add_baseline(Json& object, const Json& fp16, double ratio, const BenchMachine& machine) {
  for (const auto& [field, figure] : fp16.items()) object["fp16_" + field] = figure;
  object["ratio"] = ratio;
  object["read_bandwidth_gigabytes_per_second"] = machine.bandwidth;
}

std::vector<std::string> timing_cells(const Timing& timing, double scale, int digits) {
  std::vector<std::string> cells;
  for (const double each : {timing.median, timing.min, timing.max}) cells.push_back(number_text(scale * each, digits));
  return cells;
}

std::string above_memory_speed_text(const std::vector<double>& fractions) {
  constexpr double kAbove = 1.005;  // shown as 101 % or more
  if (std::ranges::none_of(fractions, [](double each) { return each >= kAbove; })) return "";
  return "\nAbove 100 % of memory speed: calls find a part of what they read in caches (L2, L3), which give more,\n"
         "or memory was busy with others while its own speed was measured.\n";
}

std::string bench_rows_text(const std::vector<BenchRow>& rows, const BenchLabels& labels, const BenchMachine& machine) {
  Table table({labels.name_heading, labels.bits_heading, "bytes", "median\nus", "min\nus", "max\nus", "GB/s",
               "of memory\nspeed", "times faster\nthan FP16"});
  std::vector<double> fractions;
  for (const BenchRow& row : rows) {
    fractions.push_back(row.gigabytes_per_second() / machine.bandwidth);
    table.add_row({row.name, number_text(row.bits, 2), bytes_text(row.bytes)}, timing_cells(row.timing),
                  {number_text(row.gigabytes_per_second(), 1), number_text(100.0 * fractions.back(), 0) + " %",
                   number_text(rows.front().timing.median / row.timing.median, 2)});
  }
  return machine.text(rows.front().timing.repetitions, "repetitions") + machine.memory_text() + "\n" + table.text() +
         above_memory_speed_text(fractions);
}

std::unique_ptr<TimedDevice> make_bench_device(const LayerShape& layer, const ComputeOptions& compute) {
  if (layer.q_heads % layer.kv_heads == 0) return make_timed_device(compute);
  throw UsageError("--heads " + std::to_string(layer.q_heads) + " is not a multiple of --kv-heads " +
                   std::to_string(layer.kv_heads));
}

void require_memory(const TimedDevice& device, uint64_t needed) {
  const uint64_t present = device.memory_bytes();
  if (needed / 4 > present / 5) {
    throw llama::Error("this shape may take " + bytes_text(needed) + " of memory, and there is " + bytes_text(present));
  }
}

BenchMachine measure_machine(TimedDevice& device, const kvq::Context& context) {
  return {.name = device.name(), .isa = context.describe().isa, .bandwidth = device.memory_bandwidth() * 1e-9};
}

void print_bench_json(const std::vector<Json>& rows, const Json& parameters, const ComputeOptions& compute,
                      const BenchMachine& machine) {
  Json object = rows.size() == 1 ? rows.front() : Json{{"rows", rows}};
  object.update(parameters);
  object["device"] = compute.device;
  object["device_name"] = machine.name;
  object["threads"] = compute.threads;
  object["isa"] = machine.isa;
  print_json(object);
}

}  // namespace cli
