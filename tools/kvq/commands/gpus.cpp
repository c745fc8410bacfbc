#include "commands/gpus.h"

#include "terminal/output.h"

namespace cli {
namespace {

// CUDA counts in hundreds and tens: 13020 is 13.2.
std::string driver_text(int32_t version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string capability_text(int32_t capability) {
  return std::to_string(capability / 10) + "." + std::to_string(capability % 10);
}

}  // namespace

CudaDevices find_cuda() {
  CudaDevices cuda;
  try {
    cuda.devices.push_back(kvq::device_describe(KVQ_DEVICE_CUDA, 0));
    for (int32_t i = 1; i < cuda.devices[0].n_devices; ++i)
      cuda.devices.push_back(kvq::device_describe(KVQ_DEVICE_CUDA, i));
  } catch (const kvq::Error& error) {
    if (cuda.devices.empty()) cuda.unavailable_because = error.what();
  }
  return cuda;
}

std::string cuda_text(const CudaDevices& cuda) {
  if (!cuda.unavailable_because.empty()) return "unavailable: " + cuda.unavailable_because;
  std::string text;
  for (const kvq_device_info& device : cuda.devices) {
    text += (text.empty() ? "" : "\n                  ") + std::string(device.name) + ", " +
            bytes_text(device.memory_bytes) + ", compute capability " + capability_text(device.compute_capability) +
            ", driver for CUDA " + driver_text(device.driver_version);
  }
  return text;
}

}  // namespace cli
