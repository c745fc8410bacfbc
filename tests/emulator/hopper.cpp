// Kernels that only newer devices have: nobody launches them.
#include "kernels/prefill.h"

namespace kvq::cuda {

cudaError_t prepare_unpack() { return cudaErrorNotSupported; }
cudaError_t prepare_prefill() { return cudaErrorNotSupported; }
cudaError_t launch_unpack(const AttendArguments& /*arguments*/, const Tiles& /*tiles*/, int32_t /*multiprocessors*/,
                          cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}
cudaError_t launch_prefill(const AttendArguments& /*arguments*/, const Tiles& /*tiles*/, cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

}  // namespace kvq::cuda
