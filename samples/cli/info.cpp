#include <memory>

#include "commands.h"
#include "compute.h"
#include "output.h"

namespace cli {
namespace {

struct Options {
  ComputeOptions compute;
  bool json = false;
};

// Empty: available.
std::string why_no_cuda(const ComputeOptions& options) {
  try {
    make_context({.threads = options.threads, .isa = ""}, KVQ_DEVICE_CUDA);
    return "";
  } catch (const llama::Error& error) {
    return error.what();
  }
}

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (int32_t i = 0; i < kvq_cpu_isa_count(); ++i) names.emplace_back(kvq_cpu_isa_name(i));
  return names;
}

void run(const Options& options) {
  const llama::ContextHandle context = make_context(options.compute, KVQ_DEVICE_CPU);
  const kvq_context_info info = describe(context.get());
  const std::string cuda = why_no_cuda(options.compute);

  if (options.json) {
    nlohmann::ordered_json object;
    object["version"] = kvq_version_string();
    object["api_version"] = kvq_api_version();
    object["backend"] = info.backend;
    object["isa"] = info.isa;
    object["isa_available"] = instruction_sets();
    object["threads"] = info.n_threads;
    object["cuda_available"] = cuda.empty();
    object["cuda_unavailable_because"] = cuda;
    return print_json(object);
  }
  std::string available;
  for (const std::string& name : instruction_sets()) available += (available.empty() ? "" : ", ") + name;
  print_text("kvq " + std::string(kvq_version_string()) + ", API version " + std::to_string(kvq_api_version()) + "\n" +
             "backend           " + info.backend + "\n" +  //
             "instruction set   " + info.isa + " (available: " + available + ")\n" + "threads           " +
             std::to_string(info.n_threads) + "\n" +  //
             "CUDA              " + (cuda.empty() ? "available" : "unavailable: " + cuda) + "\n");
}

}  // namespace

void add_info(CLI::App& app) {
  CLI::App* command = app.add_subcommand("info", "Version, backends and instruction sets");
  auto options = std::make_shared<Options>();
  add_compute_options(*command, options->compute);
  command->add_flag("--json", options->json, "Print one JSON object");
  command->callback([options] { run(*options); });
}

}  // namespace cli
