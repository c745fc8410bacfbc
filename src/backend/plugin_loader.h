#pragma once

#include "backend/plugin.h"

namespace kvq {

/// The CUDA plug-in: the library at `path`, which dlopen understands, or if that is null, libkvq_cuda.so beside the
/// library or program that holds this code, then where the loader searches. Throws KVQ_E_UNSUPPORTED with the reason.
const BackendPlugin& load_cuda_plugin(const char* path);

}  // namespace kvq
