#pragma once

#include "bench/random_layer.h"
#include "bench/timing.h"
#include "options/command.h"
#include "options/common.h"
#include "terminal/output.h"

namespace cli {

/// What is measured: the FP16 baseline first.
std::vector<std::string> with_baseline(const std::vector<std::string>& names);

/// What every `bench` of cache formats can be told.
struct BenchOptions {
  std::vector<std::string> kv;
  LayerShape layer;
  ComputeOptions compute;
  bool json = false;

  std::vector<std::string> specs() const { return with_baseline(kv); }
  /// `parameters` and those of the layer.
  Json with_layer(Json parameters) const;
};

/// What the figures depend on besides the shape.
struct BenchMachine {
  std::string name;
  std::string isa;
  double bandwidth = 0.0;  // GB/s of memory

  /// "2 threads, avx2, 30 calls in turn".
  std::string text(int32_t n, const std::string& calls) const {
    return name + ", " + isa + ", " + std::to_string(n) + " " + calls + " in turn";
  }
  std::string memory_text() const { return ". Memory gives " + number_text(bandwidth, 1) + " GB/s.\n"; }
};

/// One call of something that reads `bytes`, at so many bits for each of what they hold.
struct BenchRow {
  std::string name;
  Timing timing;
  uint64_t bytes = 0;
  double bits = 0.0;

  double gigabytes_per_second() const { return static_cast<double>(bytes) / timing.median * 1e-3; }
};

/// Make subjects from their names with `make`, where they stay, time them in turn with `time`, and make a row of each
/// with `row`. \param label  of the progress bar.
template <class Names, class Make, class Time, class Row>
auto measure_subjects(const std::string& label, const Names& names, Make&& make, Time&& time, Row&& row) {
  Progress progress(label, kTimingSteps * static_cast<int64_t>(names.size() + 1));
  using Subject = decltype(make(names.front()));
  std::vector<std::unique_ptr<Subject>> subjects;
  for (const auto& name : names) {
    subjects.emplace_back(new Subject(make(name)));
    progress.advance(kTimingSteps);
  }
  const auto timings = time(subjects, progress);
  std::vector<decltype(row(names.front(), *subjects.front(), timings.front()))> rows;
  for (size_t i = 0; i < names.size(); ++i) rows.push_back(row(names[i], *subjects[i], timings[i]));
  return rows;
}

/// The time of single calls of subjects or, where successive ones differ, of whole cycles.
inline auto time_calls(int32_t cycle = 1) {
  return [cycle](const auto& subjects, Progress& progress) {
    return time_in_turn(
        subjects.size(), progress, [&](size_t i) { return subjects[i]->run(); }, cycle);
  };
}

template <class Make>
std::vector<BenchRow> measure_rows(const std::string& label, const std::vector<std::string>& names, Make&& make) {
  return measure_subjects(label, names, make, time_calls(),
                          [](const auto& name, const auto& subject, const Timing& time) {
                            return BenchRow{name, time, subject.bytes(), subject.bits()};
                          });
}

/// What names and bits of rows are called in objects and tables.
struct BenchLabels {
  const char* name_field;
  const char* bits_field;
  const char* name_heading;
  const char* bits_heading;
};

/// The rows after the first one, which is the FP16 baseline, each beside that.
std::vector<Json> bench_rows_json(const std::vector<BenchRow>& rows, const BenchLabels& labels,
                                  const BenchMachine& machine);

/// Add to a row's object the FP16 baseline's figures, the ratio of both and the speed of memory.
void add_baseline(Json& object, const Json& fp16, double ratio, const BenchMachine& machine);

/// Cells "median", "min" and "max" of times, each multiplied by `scale`.
std::vector<std::string> timing_cells(const Timing& timing, double scale = 1.0, int digits = 1);

/// Why calls can read faster than memory gives; empty if none of `fractions` of its speed does.
std::string above_memory_speed_text(const std::vector<double>& fractions);

/// What machine and how often, and a table of all rows.
std::string bench_rows_text(const std::vector<BenchRow>& rows, const BenchLabels& labels, const BenchMachine& machine);

/// Names of the option of tokens that a cache holds: as in other commands, and as `bench` called it before.
inline constexpr const char* kContextNames = "--context,--length";

struct DtypeOption {
  std::string given;  // empty: as usual on the device

  std::string name(const ComputeOptions& compute) const;
  kvq_dtype dtype(const ComputeOptions& compute) const;
};

/// Each adds options whose targets' values are the defaults: `--heads`, `--kv-heads` and `--head-dim`; `--dtype`;
/// `--kv`, those of the layer and of add_run_options().
void add_layer_options(Command command, LayerShape& layer);
/// Of commands that serve values unlike keys.
void add_value_options(Command command, LayerShape& layer);
void add_dtype_option(Command command, DtypeOption& dtype);
void add_bench_options(Command command, BenchOptions& options);

/// A UsageError if query heads cannot share the KV heads evenly, an Error if the device is not available.
std::unique_ptr<TimedDevice> make_bench_device(const LayerShape& layer, const ComputeOptions& compute);

/// An Error if `needed` bytes are more than the device can be expected to have free.
void require_memory(const TimedDevice& device, uint64_t needed);
BenchMachine measure_machine(TimedDevice& device, const kvq::Context& context);

/// Print one object: the only row itself or else the array `rows`, then `parameters` and the machine.
void print_bench_json(const std::vector<Json>& rows, const Json& parameters, const ComputeOptions& compute,
                      const BenchMachine& machine);

}  // namespace cli
