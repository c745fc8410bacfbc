// Decoding of heads of up to 128 channels.
#include "kernels/prefill/unpack.cuh"

namespace kvq::cuda {

cudaError_t launch_unpack(const AttendArguments& arguments, const Tiles& tiles, int32_t multiprocessors,
                          int32_t shared_limit, cudaStream_t stream) {
  const HeadShape& head = arguments.head;
  const auto launch = head.largest() > 128     ? launch_unpack_wide
                      : head == HeadShape(128) ? launch_instance<128, true>
                      : head == HeadShape(64)  ? launch_instance<64, true>
                                               : launch_instance<128, false>;
  return launch(arguments, tiles, multiprocessors, shared_limit, stream);
}

}  // namespace kvq::cuda
