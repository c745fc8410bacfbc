#include "kernels/prefill/unpack.cuh"

#include <algorithm>

namespace kvq::cuda {
namespace {

template <int D>
cudaError_t prepare() {
  return cudaFuncSetAttribute(unpack_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(UnpackShared<D>));
}

}  // namespace

cudaError_t prepare_unpack() {
  const cudaError_t status = prepare<64>();
  return status != cudaSuccess ? status : prepare<128>();
}

cudaError_t launch_unpack(const AttendArguments& arguments, const Tiles& tiles, int32_t multiprocessors,
                          cudaStream_t stream) {
  const int32_t needed = (2 * kTilePages * tiles.total + kUnpackWarps - 1) / kUnpackWarps;
  const auto blocks = static_cast<uint32_t>(std::min(needed, multiprocessors));
  if (arguments.head_dim == 64) {
    unpack_kernel<64><<<blocks, 32 * kUnpackWarps, sizeof(UnpackShared<64>), stream>>>(arguments, tiles);
  } else {
    unpack_kernel<128><<<blocks, 32 * kUnpackWarps, sizeof(UnpackShared<128>), stream>>>(arguments, tiles);
  }
  return cudaGetLastError();
}

}  // namespace kvq::cuda
