// Kernels that only newer devices have: nobody launches them.
#include "kernels/linear.h"
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

int32_t tile_rows_for(const LinearMatrix& /*matrix*/, int32_t /*rows*/, const LinearDevice& /*device*/) { return 0; }
cudaError_t prepare_linear_many(const weights::Scheme& /*scheme*/, const LinearDevice& /*device*/) {
  return cudaSuccess;
}
cudaError_t launch_linear_many(const LinearMatrix& /*matrix*/, const InputRows& /*rows*/,
                               const LinearInputs& /*inputs*/, const LinearOutputs& /*outputs*/,
                               cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

}  // namespace kvq::cuda
