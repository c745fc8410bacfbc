#pragma once

#include <cstdint>
#include <memory>

#include "llama/device.h"

namespace llama::cuda {

/// The GPU `index`: weights and activations in its memory, products by cuBLASLt, on the legacy default stream.
std::unique_ptr<Device> make_device(int32_t index);

}  // namespace llama::cuda
