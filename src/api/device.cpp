#include "api/boundary.h"
#include "backend/plugin_loader.h"

using namespace kvq;
using namespace kvq::api;

kvq_status kvq_device_describe(kvq_device device, int32_t index, const char* plugin, kvq_device_info* info,
                               kvq_error* error) {
  return guarded(error, [&] {
    require_range(device, KVQ_DEVICE_CUDA, KVQ_DEVICE_CUDA, "device");
    require_range(index, 0, INT32_MAX, "index");
    require_struct(info, sizeof(uint32_t), "info");
    kvq_device_info found{};
    load_cuda_plugin(plugin).describe_device(index, found);
    write_struct(info, found, "info");
  });
}
