#pragma once

#include <cstddef>
#include <memory>

#include "llama/array.h"

namespace llama::cuda {

struct FreeDeviceMemory {
  void operator()(void* memory) const;
};
using DeviceMemory = std::unique_ptr<void, FreeDeviceMemory>;

/// Memory of the current device. Freeing it waits for the work that was issued before.
DeviceMemory allocate_device(size_t bytes);

/// `n` numbers in memory of the current device.
Array device_array(size_t n);

/// `n` numbers in page-locked host memory.
Array host_array(size_t n);

}  // namespace llama::cuda
