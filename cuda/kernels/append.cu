#include "kernels/append_page.cuh"

namespace kvq::cuda {
namespace {

__global__ void __launch_bounds__(kAppendThreads) append_kernel(const __grid_constant__ AppendArguments arguments) {
  extern __shared__ __align__(16) uint32_t shared[];
  const DeviceWrite write =
      arguments.writes != nullptr ? arguments.writes[blockIdx.x] : arguments.inline_writes[blockIdx.x];
  PageWriter(arguments, write, arguments.first_position, shared).run();
}

}  // namespace

cudaError_t prepare_append() {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(append_kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                              Layout{kMaxHeadDim}.bytes());
}

cudaError_t launch_append(const AppendArguments& arguments, cudaStream_t stream) {
  void* parameters[] = {const_cast<AppendArguments*>(&arguments)};
  return cudaLaunchKernel(reinterpret_cast<const void*>(append_kernel), dim3(static_cast<uint32_t>(arguments.n_writes)),
                          dim3(kAppendThreads), parameters, static_cast<size_t>(Layout{arguments.head_dim}.bytes()),
                          stream);
}

}  // namespace kvq::cuda
