#include "options/engine.h"

#include "llama/cuda_module.h"
#include "terminal/progress.h"

namespace cli {
namespace {

// nullptr: the model's own threads.
std::unique_ptr<llama::Device> make_device(const ComputeOptions& options) {
  return options.device == "cuda" ? llama::make_cuda_device(options.device_index) : nullptr;
}

kvq::Context make_model_context(const ComputeOptions& options, llama::ThreadPool& threads) {
  kvq_context_options context = context_options(options);
  context.parallel_for = llama::ThreadPool::parallel_for_hook;
  context.parallel_for_user = &threads;
  return kvq::Context(context);
}

std::optional<llama::WeightsFile> weights_file(const std::string& path, kvq_context* context) {
  if (path.empty()) return {};
  return llama::WeightsFile{path, context};
}

llama::Model load_model(const std::filesystem::path& directory, const std::shared_ptr<llama::ThreadPool>& threads,
                        std::unique_ptr<llama::Device> device, const std::optional<llama::WeightsFile>& weights) {
  const Progress progress("loading", 1);
  return {directory, threads, std::move(device), weights};
}

}  // namespace

Engine::Engine(const std::filesystem::path& model_directory, const ComputeOptions& options, const std::string& weights)
    : directory(model_directory),
      threads(std::make_shared<llama::ThreadPool>(options.threads)),
      context(make_model_context(options, *threads)),
      model(load_model(model_directory, threads, make_device(options), weights_file(weights, context))),
      tokenizer(model_directory / "tokenizer.json") {}

}  // namespace cli
