#include "device/device_arrays.h"

#include "core/error.h"

namespace kvq::cuda {

const void* DeviceArrays::put_bytes(const void* host, size_t bytes) {
  if (bytes == 0) return nullptr;
  std::byte* to = take_bytes(bytes);
  // Returns once the array may change: it is not page-locked.
  check(cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, device_.stream()), "cudaMemcpyAsync");
  return to;
}

void BlockGrowth::grow(DeviceBlock& block, size_t bytes, bool zeroed, bool recorded) {
  if (bytes <= block.bytes()) return;
  if (recorded) {
    fail(KVQ_E_STATE,
         "%s needs memory for its first batch of this size: call it once with this batch before capturing a CUDA graph",
         call_);
  }
  if (in_graphs_) outgrown_.reserve(outgrown_.size() + 1);
  DeviceBlock larger(device_, allocator_, bytes);
  if (zeroed) check(cudaMemsetAsync(larger.memory(), 0, bytes, device_.stream()), "cudaMemsetAsync");
  if (in_graphs_ && block.memory() != nullptr) outgrown_.push_back(std::move(block));
  block = std::move(larger);
}

}  // namespace kvq::cuda
