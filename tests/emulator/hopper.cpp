// Stubs of kernels for newer devices, which are never launched.
#include "kernels/linear/linear.h"
#include "kernels/prefill/prefill.h"
#include "kernels/wide/wide.h"

namespace kvq::cuda {

PrefillKernel hopper_prefill(const HeadShape& /*head*/) { return {}; }
WideKernel hopper_wide(const HeadShape& /*head*/, int32_t /*shared_limit*/) { return {}; }
WideKernel hopper_tiled_wide(const HeadShape& /*head*/, int32_t /*shared_limit*/) { return {}; }
cudaError_t launch_wide_tiles(const AttendArguments& /*arguments*/, const WideLaunch& /*launch*/, std::byte* /*tiles*/,
                              int32_t /*multiprocessors*/, int32_t /*shared_limit*/, cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

void count_clusters(LinearDevice& /*device*/) {}
cudaError_t prepare_linear_many(const weights::Scheme& /*scheme*/, const LinearDevice& /*device*/) {
  return cudaSuccess;
}
cudaError_t launch_linear_many(LinearProducts /*products*/, const InputRows& /*rows*/, const LinearInputs& /*inputs*/,
                               int32_t /*cluster*/, cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

}  // namespace kvq::cuda
