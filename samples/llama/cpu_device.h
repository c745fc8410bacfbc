#pragma once

#include <memory>

#include "device.h"
#include "threads.h"

namespace llama {

/// The CPU: host memory, and `threads`, which must outlive the device. Results do not depend on their number.
std::unique_ptr<Device> make_cpu_device(ThreadPool& threads);

}  // namespace llama
