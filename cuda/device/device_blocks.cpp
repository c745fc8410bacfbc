#include "device/device_blocks.h"

#include "core/error.h"
#include "device/cuda_error.h"

namespace kvq::cuda {

DeviceBlocks::~DeviceBlocks() {
  for (const Block& block : outgrown_) release(block);
}

void DeviceBlocks::grow(Block& block, size_t bytes, bool zeroed, bool recorded) {
  if (bytes <= block.bytes) return;
  if (recorded) {
    fail(KVQ_E_STATE,
         "%s needs memory for its first batch of this size: call it once with this batch before capturing a CUDA graph",
         call_);
  }
  if (in_graphs_) outgrown_.reserve(outgrown_.size() + 1);
  void* memory = backend_.allocate_device(allocator_, bytes);
  const cudaError_t status = zeroed ? cudaMemsetAsync(memory, 0, bytes, backend_.stream()) : cudaSuccess;
  if (status != cudaSuccess) {
    release({memory, bytes});
    check(status, "cudaMemsetAsync");
  }
  if (in_graphs_ && block.memory != nullptr) {
    outgrown_.push_back(block);
  } else {
    release(block);
  }
  block = {memory, bytes};
}

}  // namespace kvq::cuda
