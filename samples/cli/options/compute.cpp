#include "commands/compute.h"

#include <unistd.h>

#include <algorithm>
#include <thread>

#include "commands/usage_error.h"
#include "llama/cuda_module.h"
#include "terminal/output.h"

namespace cli {
namespace {

constexpr int32_t kMaxThreads = 1024;

kvq_context_options context_options(const ComputeOptions& options) {
  kvq_context_options result;
  kvq_context_options_init(&result);
  result.n_threads = options.threads;
  if (!options.isa.empty()) result.cpu_isa = options.isa.c_str();
  result.device = options.device == "cuda" ? KVQ_DEVICE_CUDA : KVQ_DEVICE_CPU;
  result.device_index = options.device_index;
  return result;
}

// nullptr: the model's own threads.
std::unique_ptr<llama::Device> make_device(const ComputeOptions& options) {
  return options.device == "cuda" ? llama::make_cuda_device(options.device_index) : nullptr;
}

llama::ContextHandle make_model_context(const ComputeOptions& options, llama::ThreadPool& threads) {
  kvq_context_options context = context_options(options);
  context.parallel_for = llama::ThreadPool::parallel_for_hook;
  context.parallel_for_user = &threads;
  return llama::make_context(context);
}

std::optional<llama::WeightsFile> weights_file(const ComputeOptions& options, const std::string& path,
                                               kvq_context* context) {
  if (path.empty()) return {};
  if (options.device != "cpu") {
    throw UsageError("--weights " + path + ": packed weights run on the CPU only so far, not with --device " +
                     options.device);
  }
  return llama::WeightsFile{path, context};
}

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

llama::ContextHandle make_context(const ComputeOptions& options) {
  return llama::make_context(context_options(options));
}

kvq_context_info describe(const kvq_context* context) {
  kvq_context_info info{};
  info.struct_size = sizeof(info);
  llama::checked([&](kvq_error* error) { return kvq_context_describe(context, &info, error); });
  return info;
}

kvq_device_info describe_cuda(int32_t index) {
  kvq_device_info info{};
  info.struct_size = sizeof(info);
  llama::checked([&](kvq_error* error) { return kvq_device_describe(KVQ_DEVICE_CUDA, index, nullptr, &info, error); });
  return info;
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

void add_weights_option(CLI::App& command, std::string& weights) {
  command.add_option("--weights", weights,
                     "File of `kvq quantize` to take the weights from (default: the model's own)");
}

void add_weight_bits(nlohmann::ordered_json& object, const llama::Weights& weights) {
  object["weight_bits"] = weights.bits;
  if (weights.linear_bits > 0.0) object["linear_weight_bits"] = weights.linear_bits;
}

std::string weight_bits_text(const llama::Weights& weights) {
  const std::string packed =
      weights.linear_bits > 0.0 ? number_text(weights.linear_bits, 2) + " bits per weight in packed layers, " : "";
  return packed + number_text(weights.bits, 2) + (packed.empty() ? " bits per weight" : " in all");
}

Engine::Engine(const std::filesystem::path& directory, const ComputeOptions& options, const std::string& weights)
    : threads(std::make_shared<llama::ThreadPool>(options.threads)),
      context(make_model_context(options, *threads)),
      model(directory, threads, make_device(options), weights_file(options, weights, context.get())),
      tokenizer(directory / "tokenizer.json") {}

}  // namespace cli
