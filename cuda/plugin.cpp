#include "backend/plugin.h"

#include "core/error.h"
#include "cuda_backend.h"
#include "device/cuda_error.h"

#include <cstdio>

namespace kvq::cuda {
namespace {

/// Number of devices. Throws unless device `index` exists and is new enough.
int32_t require_device(int32_t index) {
  int32_t driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    cudaGetLastError();
    fail(KVQ_E_UNSUPPORTED, "this machine has no NVIDIA driver");
  }
  int32_t n = 0;
  const cudaError_t status = cudaGetDeviceCount(&n);
  if (status != cudaSuccess) {
    cudaGetLastError();
    char message[sizeof(kvq_error::message)];
    std::snprintf(message, sizeof(message), "%s (the driver supports CUDA %d.%d, this plug-in needs %d.%d)",
                  cudaGetErrorString(status), driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000,
                  CUDART_VERSION % 1000 / 10);
    throw Error(KVQ_E_UNSUPPORTED, static_cast<int32_t>(status), message);
  }
  if (index < 0 || index >= n) {
    fail(KVQ_E_UNSUPPORTED, "device index is %d, but this machine has %d CUDA device%s", index, n, n == 1 ? "" : "s");
  }
  int32_t major = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index), "cudaDeviceGetAttribute");
  if (major < 8) {
    fail(KVQ_E_UNSUPPORTED, "device %d has compute capability %d, must be at least 8.0", index, major);
  }
  return n;
}

Owned<Backend> make_backend(Allocator& allocator, const DeviceOptions& options) {
  require_device(options.index);
  return make_owned<CudaBackend>(allocator, options);
}

void describe_device(int32_t index, kvq_device_info& info) {
  info.n_devices = require_device(index);
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  std::snprintf(info.name, sizeof(info.name), "%.127s", properties.name);
  info.compute_capability = 10 * properties.major + properties.minor;
  info.memory_bytes = properties.totalGlobalMem;
  check(cudaDriverGetVersion(&info.driver_version), "cudaDriverGetVersion");
}

constexpr BackendPlugin kPlugin{sizeof(BackendPlugin), KVQ_PLUGIN_ABI, make_backend, describe_device};

}  // namespace
}  // namespace kvq::cuda

extern "C" __attribute__((visibility("default"))) const kvq::BackendPlugin* kvq_cuda_plugin() {
  return &kvq::cuda::kPlugin;
}
