#include "bench/bench.h"
#include "bench/timed_calls.h"
#include "commands/commands.h"

namespace cli {
namespace {

struct BenchRecodeOptions : BenchOptions {
  std::vector<std::string> from{"fp16", "gs4"};
  int32_t length = 8192;
  int32_t n_layers = 4;
};

/// From what to what.
struct RecodeFormats {
  std::string from;
  std::string to;
};

/// kvq_sequence_recode after a prompt of random tokens, which no other sequence shares.
class TimedRecode {
 public:
  TimedRecode(TimedDevice& device, kvq_context* context, const RecodeFormats& formats,
              const BenchRecodeOptions& options)
      : device_(&device),
        options_(&options),
        to_(load_layer_spec(context, formats.to, options.layer)),
        cache_(cache_of_layers(context, load_layer_spec(context, formats.from, options.layer), options.layer,
                               options.n_layers)) {}

  /// One call on a new sequence, in microseconds.
  double run() {
    kvq::Sequence sequence(cache_);
    append_random(*device_, std::span(&sequence, 1), options_->layer, options_->length, options_->n_layers);
    info_ = sequence.predict_recode(to_.policy);
    return device_->time([&] { sequence.recode(to_.policy); });
  }

  /// Of the last call.
  const kvq_recode_info& info() const { return info_; }

 private:
  TimedDevice* device_;
  const BenchRecodeOptions* options_;
  Spec to_;
  kvq::Cache cache_;
  kvq_recode_info info_{};
};

struct BenchRecodeRow {
  RecodeFormats formats;
  Timing timing;
  kvq_recode_info info{};
};

std::vector<BenchRecodeRow> measure(TimedDevice& device, const kvq::Context& context,
                                    const BenchRecodeOptions& options) {
  std::vector<RecodeFormats> pairs;
  for (const std::string& to : options.kv) {
    for (const std::string& from : options.from) {
      if (from != to) pairs.push_back({from, to});
    }
  }
  if (pairs.empty()) throw UsageError("--from and --kv name the same format: nothing would be recoded");
  const auto make = [&](const RecodeFormats& formats) { return TimedRecode(device, context, formats, options); };
  return measure_subjects("recoding", pairs, make, time_calls(),
                          [](const RecodeFormats& formats, const TimedRecode& subject, const Timing& timing) {
                            return BenchRecodeRow{formats, timing, subject.info()};
                          });
}

Json row_json(const BenchRecodeRow& row) {
  return {{"from", row.formats.from},
          {"kv", row.formats.to},
          {"microseconds", row.timing.median},
          {"min", row.timing.min},
          {"max", row.timing.max},
          {"microseconds_a_page", row.timing.median / static_cast<double>(std::max<int64_t>(row.info.pages, 1))},
          {"pages", row.info.pages},
          {"needed_bytes", row.info.needed_bytes},
          {"bytes_before", row.info.bytes_before},
          {"bytes_after", row.info.bytes_after},
          {"repetitions", row.timing.repetitions}};
}

void print_rows(const BenchRecodeOptions& options, const std::vector<BenchRecodeRow>& rows,
                const BenchMachine& machine) {
  Table table({"from", "to", "bytes\nbefore", "bytes\nafter", "bytes\nneeded", "median\nms", "min\nms", "max\nms",
               "us\na page"});
  for (const BenchRecodeRow& row : rows) {
    const kvq_recode_info& info = row.info;
    table.add_row({row.formats.from, row.formats.to, bytes_text(info.bytes_before), bytes_text(info.bytes_after),
                   bytes_text(info.needed_bytes)},
                  timing_cells(row.timing, 1e-3),
                  {number_text(row.timing.median / static_cast<double>(std::max<int64_t>(info.pages, 1)), 1)});
  }
  print_text("Calls of kvq_sequence_recode after a prompt of " + std::to_string(options.length) + " tokens, " +
             std::to_string(options.n_layers) + " layers of " + options.layer.text() + ";\n" +
             machine.text(rows.front().timing.repetitions, "calls") + ".\n\n" + table.text());
}

void run(const BenchRecodeOptions& options) {
  const std::unique_ptr<TimedDevice> device = make_bench_device(options.layer, options.compute);
  require_memory(*device, 2 * options.layer.fp16_token_bytes() * static_cast<uint64_t>(options.length) *
                              static_cast<uint64_t>(options.n_layers));
  const kvq::Context context = make_context(options.compute);
  const std::vector<BenchRecodeRow> rows = measure(*device, context, options);
  const BenchMachine machine = measure_machine(*device, context);
  if (!options.json) return print_rows(options, rows, machine);
  std::vector<Json> objects;
  for (const BenchRecodeRow& row : rows) objects.push_back(row_json(row));
  print_bench_json(objects, options.with_layer({{"length", options.length}, {"n_layers", options.n_layers}}),
                   options.compute, machine);
}

}  // namespace

void add_bench_recode(Command bench) {
  Command command = bench.add_command("recode", "Time of encoding a sequence again, in a smaller format");
  auto options = std::make_shared<BenchRecodeOptions>();
  options->kv = {"gs2"};
  command.add_option("--from", options->from, "What the sequence is kept in before; as --kv")
      .repeatable()
      .show_default();
  command.add_number(kContextNames, options->length, 64, 1 << 24, "Tokens of the prompt");
  command.add_number("--layers", options->n_layers, 1, 1024, "Layers, which are recoded together");
  add_bench_options(command, *options);
  command.on_run([options] { run(*options); });
}

}  // namespace cli
