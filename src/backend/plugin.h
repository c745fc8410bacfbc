// Interface between libkvq and a backend library opened on request.
#pragma once

#include "backend/backend.h"

namespace kvq {

/// Bump after any change that both sides must agree on: backend.h and its includes. A new code type needs no bump: a
/// plug-in that does not know it refuses it.
#define KVQ_PLUGIN_ABI "kvq " KVQ_VERSION_STRING " plug-in 16"

/// A context's device options.
struct DeviceOptions {
  int32_t index = 0;
  void* stream = nullptr;
  kvq_device_allocate_hook allocate = nullptr;
  kvq_device_free_hook free = nullptr;
  void* user = nullptr;
  const char* isa = nullptr;  // of GPUs whose kernels run, like "sm_80"; others and null: the device's
};

/// Entry points of a plug-in. The first two members never change, so that a library recognises plug-ins of other
/// versions.
struct BackendPlugin {
  uint32_t struct_size;
  const char* abi;  // the plug-in's KVQ_PLUGIN_ABI
  /// Throws KVQ_E_UNSUPPORTED without such a device, with the driver's reason.
  Owned<Backend> (*make_backend)(Allocator& allocator, const DeviceOptions& options);
  /// Throws as make_backend does; fills everything but struct_size.
  void (*describe_device)(int32_t index, kvq_device_info& info);
};

/// The only function that a plug-in exports.
using BackendPluginEntry = const BackendPlugin* (*)();
inline constexpr char kCudaPluginEntry[] = "kvq_cuda_plugin";

}  // namespace kvq
