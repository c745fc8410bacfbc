#include "bench/bench.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "llama/error.h"
#include "options/command.h"
#include "options/spec.h"
#include "terminal/output.h"

namespace cli {
namespace {

void add_figures(Json& object, const std::string& prefix, const BenchRow& row) {
  object[prefix + "microseconds"] = row.timing.median;
  object[prefix + "min"] = row.timing.min;
  object[prefix + "max"] = row.timing.max;
  object[prefix + "bytes"] = row.bytes;
  object[prefix + "gigabytes_per_second"] = row.gigabytes_per_second();
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
  return parameters;
}

void add_layer_options(Command command, LayerShape& layer) {
  command.add_option("--heads", layer.q_heads, "Query heads").range(1, 1 << 14).show_default();
  command.add_option("--kv-heads", layer.kv_heads, "KV heads").range(1, 1 << 12).show_default();
  command.add_option("--head-dim", layer.head_dim, "Channels of a head").range(8, 256).show_default();
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
                  std::string(kSpecHelp) +
                      ", commvq-1 or commvq-2, both optionally with ,head and "
                      ",attention=tables or rebuild, gain-shape formats with a number of centres (gs2-256), or "
                      "moqae or moqae-BITS, all trained on random numbers; may be repeated")
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
    Json object;
    object[labels.name_field] = row.name;
    add_figures(object, "", row);
    object[labels.bits_field] = row.bits;
    add_figures(object, "fp16_", fp16);
    object["ratio"] = fp16.timing.median / row.timing.median;
    object["read_bandwidth_gigabytes_per_second"] = machine.bandwidth;
    object["bandwidth_fraction"] = row.gigabytes_per_second() / machine.bandwidth;
    object["repetitions"] = row.timing.repetitions;
    objects.push_back(std::move(object));
  }
  return objects;
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
    table.add_row({row.name, number_text(row.bits, 2), bytes_text(row.bytes), number_text(row.timing.median, 1),
                   number_text(row.timing.min, 1), number_text(row.timing.max, 1),
                   number_text(row.gigabytes_per_second(), 1), number_text(100.0 * fractions.back(), 0) + " %",
                   number_text(rows.front().timing.median / row.timing.median, 2)});
  }
  return machine.name + ", " + machine.isa + ", " + std::to_string(rows.front().timing.repetitions) +
         " repetitions in turn. Memory gives " + number_text(machine.bandwidth, 1) + " GB/s.\n\n" + table.text() +
         above_memory_speed_text(fractions);
}

void check_layer(const LayerShape& layer) {
  if (layer.q_heads % layer.kv_heads == 0) return;
  throw UsageError("--heads " + std::to_string(layer.q_heads) + " is not a multiple of --kv-heads " +
                   std::to_string(layer.kv_heads));
}

std::unique_ptr<TimedDevice> make_bench_device(const BenchOptions& options) {
  check_layer(options.layer);
  return make_timed_device(options.compute);
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
  Json object;
  if (rows.size() == 1) {
    object = rows.front();
  } else {
    object["rows"] = rows;
  }
  object.update(parameters);
  object["device"] = compute.device;
  object["device_name"] = machine.name;
  object["threads"] = compute.threads;
  object["isa"] = machine.isa;
  print_json(object);
}

}  // namespace cli
