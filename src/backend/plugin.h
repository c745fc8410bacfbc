// The boundary between libkvq and a backend in a library of its own, opened on request.
#pragma once

#include "backend/backend.h"

namespace kvq {

/// Changes with anything that both sides must agree on: backend.h and what it includes. A new code type changes
/// nothing: a plug-in that does not know it refuses it.
#define KVQ_PLUGIN_ABI "kvq " KVQ_VERSION_STRING " plug-in 13"

/// How a context wants its device.
struct DeviceOptions {
  int32_t index = 0;
  void* stream = nullptr;
  kvq_device_allocate_hook allocate = nullptr;
  kvq_device_free_hook free = nullptr;
  void* user = nullptr;
};

/// What a plug-in provides. The first two members never change, so that a library can tell that it was given another
/// version's plug-in.
struct BackendPlugin {
  uint32_t struct_size;
  const char* abi;  // KVQ_PLUGIN_ABI of its build
  /// Throws KVQ_E_UNSUPPORTED if there is no such device, with the driver's reason.
  Owned<Backend> (*make_backend)(Allocator& allocator, const DeviceOptions& options);
  /// The same failures. Fills everything but struct_size.
  void (*describe_device)(int32_t index, kvq_device_info& info);
};

/// The one function that a plug-in exports.
using BackendPluginEntry = const BackendPlugin* (*)();
inline constexpr char kCudaPluginEntry[] = "kvq_cuda_plugin";

}  // namespace kvq
