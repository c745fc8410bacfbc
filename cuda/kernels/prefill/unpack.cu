// Decoding of heads of up to 128 channels.
#include "kernels/prefill/unpack.cuh"

namespace kvq::cuda {

cudaError_t launch_unpack(const AttendArguments& arguments, const Tiles& tiles, int32_t multiprocessors,
                          int32_t shared_limit, cudaStream_t stream) {
  const auto launch = arguments.head.keys > 128    ? launch_unpack_wide
                      : arguments.head.keys == 128 ? launch_instance<128, true>
                      : arguments.head.keys == 64  ? launch_instance<64, true>
                                                   : launch_instance<128, false>;
  return launch(arguments, tiles, multiprocessors, shared_limit, stream);
}

}  // namespace kvq::cuda
