#pragma once

#include "ggml.h"

namespace llama_kvq {

/// Between libllama and ggml's CUDA backend, which may be a library that is loaded later: nodes of GGML_OP_CUSTOM with
/// `function` run on the GPU, by `compute`.
///
/// compute: `user` is the node's, tensors are on GPU `device`, work is enqueued on `stream` (cudaStream_t). False:
/// there is no result.
struct DeviceNodes {
  ggml_custom_op_t function;
  bool (*compute)(ggml_tensor* output, void* user, int device, void* stream);
};

/// What ggml_backend_reg_get_proc_address returns for this name. `nodes` lives as long as the process.
inline constexpr char kSetDeviceNodes[] = "llama_kvq_set_device_nodes";
using SetDeviceNodes = void (*)(const DeviceNodes* nodes);

}  // namespace llama_kvq
