#pragma once

#include "ggml-backend.h"

#include <cstdint>

struct llama_cparams;
struct llama_model;

namespace llama_kvq {

/// Where a cache is.
struct Place {
  ggml_backend_dev_t gpu = nullptr;  // NULL: in host memory
  int32_t index = 0;                 // of the GPU, as CUDA counts
};

/// The GPU that has all layers of the model, if kvq can use it; else host memory, with the reason in the log.
Place choose_place(const llama_model& model, const llama_cparams& cparams);

}  // namespace llama_kvq
