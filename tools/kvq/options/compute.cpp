#include "options/compute.h"

#include <algorithm>
#include <charconv>
#include <thread>

namespace cli {
namespace {

constexpr int32_t kMaxThreads = 1024;

}  // namespace

void add_compute_options(Command command, ComputeOptions& options) {
  options.threads = std::clamp(static_cast<int32_t>(std::thread::hardware_concurrency()), 1, kMaxThreads);
  command.add_option("--threads", options.threads, "Threads to compute with").range(1, kMaxThreads).show_default();
  command.add_option("--isa", options.isa, "Instruction set of the kernels; `kvq info` lists them (default: the best)");
}

void add_device_options(Command command, ComputeOptions& options) {
  command.add_option("--device", options.device, "Where to compute").one_of({"cpu", "cuda"}).show_default();
  command.add_option("--device-index", options.device_index, "Which of several GPUs").range(0, 1 << 16).show_default();
}

void add_json_flag(Command command, bool& json) { command.add_flag("--json", json, "Print one JSON object"); }

void add_seed_option(Command command, uint64_t& seed, const std::string& help) {
  command.add_option("--seed", seed, help)
      .check([](const std::string& text) {
        uint64_t number = 0;
        const char* end = text.data() + text.size();
        const auto [stop, code] = std::from_chars(text.data(), end, number);
        const bool is_seed = code == std::errc() && stop == end;
        return is_seed ? std::string() : "must be an integer from 0 to 18446744073709551615, not \"" + text + "\"";
      })
      .show_default();
}

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
