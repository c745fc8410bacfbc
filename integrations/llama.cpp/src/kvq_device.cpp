#include "kvq_device.h"

#include "kvq_cache.h"
#include "kvq_device_nodes.h"
#include "kvq_graph.h"

#include "llama-cparams.h"
#include "llama-hparams.h"
#include "llama-impl.h"
#include "llama-model.h"

#include <cstring>

namespace llama_kvq {
namespace {

Place in_host_memory(const char* reason) {
  LLAMA_LOG_WARN("kvq: the cache is in host memory and attention runs on the CPU: %s\n", reason);
  return {};
}

}  // namespace

Place choose_place(const llama_model& model, const llama_cparams& cparams) {
  auto* device = model.dev_layer(0);
  for (uint32_t il = 1; il < model.hparams.n_layer(); ++il) {
    if (model.dev_layer(static_cast<int>(il)) != device)
      return in_host_memory("the layers are on several devices; all must be on one GPU");
  }
  if (ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU) return {};
  if (!cparams.offload_kqv) return in_host_memory("offloading of the KV cache is off");
  auto* backend = ggml_backend_dev_backend_reg(device);
  void* set_nodes = nullptr;
  if (backend && std::strcmp(ggml_backend_reg_name(backend), "CUDA") == 0)  // split tensors are on a device of none
    set_nodes = ggml_backend_reg_get_proc_address(backend, kSetDeviceNodes);
  if (!set_nodes) return in_host_memory("kvq's GPUs are those of CUDA, and tensors are not split");
  Place place = {device, 0};
  while (ggml_backend_reg_dev_get(backend, static_cast<size_t>(place.index)) != device) ++place.index;
  kvq_device_info info = {};
  info.struct_size = sizeof(info);
  Error error;
  if (kvq_device_describe(KVQ_DEVICE_CUDA, place.index, nullptr, &info, &error) != KVQ_OK)
    return in_host_memory(error.message);
  reinterpret_cast<SetDeviceNodes>(set_nodes)(device_nodes());
  return place;
}

}  // namespace llama_kvq
