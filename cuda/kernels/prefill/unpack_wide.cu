// Decoding of heads of more than 128 channels.
#include "kernels/prefill/unpack.cuh"

namespace kvq::cuda {

cudaError_t launch_unpack_wide(const AttendArguments& arguments, const Tiles& tiles, int32_t multiprocessors,
                               int32_t shared_limit, cudaStream_t stream) {
  return launch_instance<256, false>(arguments, tiles, multiprocessors, shared_limit, stream);
}

}  // namespace kvq::cuda
