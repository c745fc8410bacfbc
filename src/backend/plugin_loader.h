#pragma once

#include "backend/plugin.h"

namespace kvq {

/// Opens the CUDA plug-in: the library at `path`, resolved by dlopen; if null, libkvq_cuda.so beside the library or
/// program that holds this code, then on the loader's search path. Throws KVQ_E_UNSUPPORTED with the reason.
const BackendPlugin& load_cuda_plugin(const char* path);

}  // namespace kvq
