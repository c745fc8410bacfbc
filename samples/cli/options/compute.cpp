#include "options/compute.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <thread>

namespace cli {
namespace {

constexpr int32_t kMaxThreads = 1024;

}  // namespace

void add_compute_options(CLI::App& command, ComputeOptions& options) {
  options.threads = std::clamp(static_cast<int32_t>(std::thread::hardware_concurrency()), 1, kMaxThreads);
  command.add_option("--threads", options.threads, "Threads to compute with")
      ->check(CLI::Range(1, kMaxThreads))
      ->capture_default_str();
  command.add_option("--isa", options.isa, "Instruction set of the kernels; `kvq info` lists them (default: the best)");
}

void add_device_options(CLI::App& command, ComputeOptions& options) {
  command.add_option("--device", options.device, "Where to compute")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command.add_option("--device-index", options.device_index, "Which of several GPUs")
      ->check(CLI::Range(0, 1 << 16))
      ->capture_default_str();
}

void add_json_flag(CLI::App& command, bool& json) { command.add_flag("--json", json, "Print one JSON object"); }

kvq_context_options context_options(const ComputeOptions& options) {
  auto result = kvq::initialised<kvq_context_options>();
  result.n_threads = options.threads;
  if (!options.isa.empty()) result.cpu_isa = options.isa.c_str();
  result.device = options.device == "cuda" ? KVQ_DEVICE_CUDA : KVQ_DEVICE_CPU;
  result.device_index = options.device_index;
  return result;
}

kvq::Context make_context(const ComputeOptions& options) { return kvq::Context(context_options(options)); }

std::string machine_text(const kvq::Context& context, const ComputeOptions& options) {
  if (options.device == "cuda") {
    return std::string(kvq::device_describe(KVQ_DEVICE_CUDA, options.device_index).name) + ", " +
           context.describe().isa;
  }
  return std::to_string(options.threads) + (options.threads == 1 ? " thread with " : " threads with ") +
         context.describe().isa + " instructions";
}

}  // namespace cli
