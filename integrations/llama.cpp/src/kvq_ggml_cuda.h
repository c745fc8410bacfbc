#pragma once

// What edited places of ggml-cuda.cu call; it includes this file.
#include "kvq_device_nodes.h"

#include <atomic>

namespace llama_kvq {

static std::atomic<const DeviceNodes*> device_nodes{nullptr};

static void set_device_nodes(const DeviceNodes* nodes) { device_nodes.store(nodes); }

/// A node of kvq is known by its function: others of GGML_OP_CUSTOM run on the CPU.
static bool is_device_node(const ggml_tensor* node) {
  const auto* nodes = device_nodes.load();
  ggml_custom_op_params params;
  memcpy(&params, node->op_params, sizeof(params));
  return nodes && params.fun == nodes->function;
}

static bool compute_device_node(ggml_tensor* node, int device, cudaStream_t stream) {
  if (!is_device_node(node)) return false;
  ggml_custom_op_params params;
  memcpy(&params, node->op_params, sizeof(params));
  if (!device_nodes.load()->compute(node, params.userdata, device, stream)) {
    CUDA_CHECK(cudaMemsetAsync(node->data, 0, ggml_nbytes(node), stream));
  }
  return true;
}

}  // namespace llama_kvq
