#include <array>
#include <thread>

#include "bench/timing.h"
#include "commands/commands.h"
#include "commands/gpus.h"
#include "llama/system.h"

namespace cli {
namespace {

struct DoctorOptions {
  ComputeOptions compute;
  bool json = false;
};

/// What decoding a token of an 8B model reads: weights that are multiplied, and a cache.
constexpr double kWeights = 7.5e9;
constexpr int32_t kTokens = 32768;
struct Weights {
  const char* name;
  double bits;
};
constexpr std::array<Weights, 2> kSchemes = {{{"fp16", 16.0}, {"vq-4", 4.03}}};
constexpr std::array<const char*, 3> kCacheNames = {"fp16", "gs4", "gs2"};

double bytes_of_cache(const kvq::Context& context, const char* format) {
  auto options = kvq::initialised<kvq_cache_options>();
  options.n_layers = 32;
  options.q_heads = 32;
  options.kv_heads = 8;
  options.head_dim = 128;
  const kvq::Cache cache(context, options, kvq::Policy::load(context, format));
  return static_cast<double>(kv_bytes(cache.predict_usage(1, kTokens, 1)));
}

struct ReadByStep {
  std::string weights;
  std::string cache;
  double bytes = 0.0;
};

std::vector<ReadByStep> read_by_steps(const kvq::Context& context) {
  std::vector<ReadByStep> all;
  for (const Weights& weights : kSchemes) {
    for (const char* format : kCacheNames) {
      all.push_back({weights.name, format, kWeights * weights.bits / 8.0 + bytes_of_cache(context, format)});
    }
  }
  return all;
}

struct Findings {
  std::string processor;
  std::string isa;
  int32_t threads = 0;
  int32_t all_threads = 0;
  uint64_t memory = 0;
  double bandwidth = 0.0;  // bytes per second
  CudaDevices cuda;
};

Findings examine(const DoctorOptions& options, const kvq::Context& context) {
  return {.processor = llama::processor_name(),
          .isa = context.describe().isa,
          .threads = options.compute.threads,
          .all_threads = static_cast<int32_t>(std::thread::hardware_concurrency()),
          .memory = llama::host_memory_bytes(),
          .bandwidth = make_timed_device(options.compute)->memory_bandwidth(),
          .cuda = find_cuda()};
}

std::vector<std::string> faster_by(const Findings& found) {
  std::vector<std::string> lines;
  if (found.threads < found.all_threads) {
    lines.push_back("--threads " + std::to_string(found.all_threads) + ": this machine has as many");
  }
  if (found.isa == "baseline" || found.isa == "neon") {
    lines.emplace_back(
        "a processor with dot products of bytes: attention on compressed pages is bound by instructions");
  } else if (found.isa == "avx2") {
    lines.emplace_back(
        "a processor with VNNI: gs4 is 3.6 times as fast as FP16 with AVX-512 and VNNI, 2.9 times with AVX2, gs2 4.5 "
        "and "
        "3.1 times");
  }
  const std::string& missing = found.cuda.unavailable_because;
  lines.push_back(missing.empty() ? "--device cuda" : "a GPU: " + missing);
  return lines;
}

void print_findings(const Findings& found, const std::vector<ReadByStep>& all) {
  Table table({"weights", "cache", "reads", "at least"});
  for (const ReadByStep& each : all) {
    table.add_row({each.weights, each.cache, bytes_text(static_cast<uint64_t>(each.bytes)),
                   number_text(1e3 * each.bytes / found.bandwidth, 0) + " ms"});
  }
  std::string text = "processor         " + found.processor + ", " + std::to_string(found.threads) + " of " +
                     std::to_string(found.all_threads) + " threads\n" +  //
                     "instruction set   " + found.isa + "\n" +           //
                     "memory            " + bytes_text(found.memory) + ", read at " +
                     number_text(1e-9 * found.bandwidth, 1) + " GB/s\n" +  //
                     "GPU               " + (found.cuda.devices.empty() ? "none" : cuda_text(found.cuda)) + "\n\n" +
                     "A token of an 8B model behind " + std::to_string(kTokens) +
                     " others takes as long as memory takes to be read:\n\n" + table.text() + "\nFaster would be\n";
  for (const std::string& line : faster_by(found)) text += "- " + line + "\n";
  print_text(text);
}

void run(const DoctorOptions& options) {
  const kvq::Context context = make_context(options.compute);
  const Findings found = examine(options, context);
  const std::vector<ReadByStep> all = read_by_steps(context);
  if (!options.json) return print_findings(found, all);
  Json object = {{"processor", found.processor},
                 {"isa", found.isa},
                 {"threads", found.threads},
                 {"memory_bytes", found.memory},
                 {"read_bandwidth_gigabytes_per_second", 1e-9 * found.bandwidth},
                 {"gpu", found.cuda.devices.empty() ? "" : found.cuda.devices[0].name},
                 {"no_gpu_because", found.cuda.unavailable_because},
                 {"advice", faster_by(found)}};
  for (const ReadByStep& each : all) {
    object["steps"].push_back({{"weights", each.weights},
                               {"cache", each.cache},
                               {"bytes", each.bytes},
                               {"seconds", each.bytes / found.bandwidth}});
  }
  print_json(object);
}

}  // namespace

void add_doctor(Command app) {
  Command command =
      app.add_command("doctor", "What this machine has, how fast its memory is, and what would be faster");
  auto options = std::make_shared<DoctorOptions>();
  add_compute_options(command, options->compute);
  add_json_flag(command, options->json);
  command.on_run([options] { run(*options); });
}

}  // namespace cli
