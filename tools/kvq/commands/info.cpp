#include "commands/commands.h"
#include "commands/gpus.h"

namespace cli {
namespace {

struct InfoOptions {
  ComputeOptions compute;
  bool json = false;
};

// The first device; null where there is none.
void add_cuda(Json& object, const CudaDevices& cuda) {
  object["cuda_available"] = cuda.unavailable_because.empty();
  object["cuda_unavailable_because"] = cuda.unavailable_because;
  object["cuda_devices"] = cuda.devices.size();
  for (const char* field : {"cuda_device", "cuda_memory_bytes", "cuda_compute_capability", "cuda_driver_version"}) {
    object[field] = nullptr;
  }
  if (cuda.devices.empty()) return;
  object["cuda_device"] = cuda.devices[0].name;
  object["cuda_memory_bytes"] = cuda.devices[0].memory_bytes;
  object["cuda_compute_capability"] = cuda.devices[0].compute_capability;
  object["cuda_driver_version"] = cuda.devices[0].driver_version;
}

void run(const InfoOptions& options) {
  const kvq::Context context = make_context(options.compute);
  const kvq_context_info info = context.describe();
  const CudaDevices cuda = find_cuda();

  if (options.json) {
    Json object;
    object["version"] = kvq_version_string();
    object["api_version"] = kvq_api_version();
    object["backend"] = info.backend;
    object["isa"] = info.isa;
    object["isa_available"] = instruction_sets();
    object["threads"] = info.n_threads;
    add_cuda(object, cuda);
    return print_json(object);
  }
  print_text("kvq " + std::string(kvq_version_string()) + ", API version " + std::to_string(kvq_api_version()) + "\n" +
             "backend           " + info.backend + "\n" +  //
             "instruction set   " + info.isa + " (available: " + joined(instruction_sets()) + ")\n" +
             "threads           " + std::to_string(info.n_threads) + "\n" +  //
             "CUDA              " + cuda_text(cuda) + "\n");
}

}  // namespace

void add_info(Command app) {
  Command command = app.add_command("info", "Version, backends and instruction sets");
  auto options = std::make_shared<InfoOptions>();
  add_compute_options(command, options->compute);
  add_json_flag(command, options->json);
  command.on_run([options] { run(*options); });
}

}  // namespace cli
