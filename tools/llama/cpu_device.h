#pragma once

#include <cstdint>
#include <memory>

#include "device.h"
#include "threads.h"

namespace llama {

/// All of this machine's memory.
uint64_t host_memory_bytes();

/// The CPU: host memory, and `threads`, which must outlive the device. Results do not depend on their number.
std::unique_ptr<Device> make_cpu_device(ThreadPool& threads);

}  // namespace llama
