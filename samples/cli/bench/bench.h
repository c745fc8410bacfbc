#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/random_layer.h"
#include "bench/timing.h"
#include "commands/compute.h"

namespace cli {

/// What every `bench` of cache formats can be told.
struct BenchOptions {
  std::vector<std::string> kv;
  LayerShape layer;
  ComputeOptions compute;
  bool json = false;

  /// What is measured: the FP16 baseline first, then every --kv.
  std::vector<std::string> specs() const;
  /// `parameters` and those of the layer.
  nlohmann::ordered_json with_layer(nlohmann::ordered_json parameters) const;
};

/// What the figures depend on besides the shape.
struct BenchMachine {
  std::string name;
  std::string isa;
  double bandwidth = 0.0;  // GB/s of memory
};

/// One call of something that reads `bytes`.
struct BenchRow {
  std::string name;
  Timing timing;
  uint64_t bytes = 0;
  double bits = 0.0;

  double gigabytes_per_second() const { return static_cast<double>(bytes) / timing.median * 1e-3; }
};

/// What names and bits of rows are called in objects and tables.
struct BenchLabels {
  const char* name_field;
  const char* bits_field;
  const char* name_heading;
  const char* bits_heading;
};

/// The rows after the first one, which is the FP16 baseline, each beside that.
std::vector<nlohmann::ordered_json> bench_rows_json(const std::vector<BenchRow>& rows, const BenchLabels& labels,
                                                    const BenchMachine& machine);

/// What machine and how often, and a table of all rows.
std::string bench_rows_text(const std::vector<BenchRow>& rows, const BenchLabels& labels, const BenchMachine& machine);

/// Add the options; the values in `options` are the defaults.
void add_bench_options(CLI::App& command, BenchOptions& options);

/// The device of `options`. A UsageError if the shape is impossible, an Error if the device is not available.
std::unique_ptr<TimedDevice> make_bench_device(const BenchOptions& options);

/// An Error if `needed` bytes are more than the device can be expected to have free.
void require_memory(const TimedDevice& device, uint64_t needed);

BenchMachine measure_machine(TimedDevice& device, const kvq_context* context);

/// Print one object: the only row itself or else the array `rows`, then `parameters` and the machine.
void print_bench_json(const std::vector<nlohmann::ordered_json>& rows, const nlohmann::ordered_json& parameters,
                      const ComputeOptions& compute, const BenchMachine& machine);

}  // namespace cli
