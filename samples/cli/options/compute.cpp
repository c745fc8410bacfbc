#include "options/compute.h"

#include <unistd.h>
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
  kvq_context_options result;
  kvq_context_options_init(&result, sizeof(result));
  result.n_threads = options.threads;
  if (!options.isa.empty()) result.cpu_isa = options.isa.c_str();
  result.device = options.device == "cuda" ? KVQ_DEVICE_CUDA : KVQ_DEVICE_CPU;
  result.device_index = options.device_index;
  return result;
}

llama::ContextHandle make_context(const ComputeOptions& options) {
  return llama::make_context(context_options(options));
}

kvq_context_info describe(const kvq_context* context) {
  return llama::described<kvq_context_info>(kvq_context_describe, context);
}

kvq_device_info describe_cuda(int32_t index) {
  return llama::described<kvq_device_info>(kvq_device_describe, KVQ_DEVICE_CUDA, index, nullptr);
}

uint64_t memory_bytes() {
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

std::string machine_text(const kvq_context* context, const ComputeOptions& options) {
  if (options.device == "cuda") {
    return std::string(describe_cuda(options.device_index).name) + ", " + describe(context).isa;
  }
  return std::to_string(options.threads) + (options.threads == 1 ? " thread with " : " threads with ") +
         describe(context).isa + " instructions";
}

}  // namespace cli
