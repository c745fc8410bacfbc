#pragma once

#include <string>
#include <vector>

#include "kvq.hpp"

namespace cli {

/// GPUs that kvq can use.
struct CudaDevices {
  std::vector<kvq_device_info> devices;
  std::string unavailable_because;  // empty: available
};

CudaDevices find_cuda();

/// Name, memory, compute capability and driver of each device, a line each behind the first one's 18 columns; or why
/// there is none.
std::string cuda_text(const CudaDevices& cuda);

}  // namespace cli
