#include "attend_workspace.h"

#include "core/error.h"
#include "cuda_error.h"

#include <algorithm>

namespace kvq::cuda {

AttendWorkspace::AttendWorkspace(CudaBackend& backend, Allocator& allocator)
    : backend_(backend), allocator_(allocator), outgrown_(StlAllocator<Block>(allocator)) {}

AttendWorkspace::~AttendWorkspace() {
  for (const Block& block : {inv_freq_, partials_, tickets_}) {
    backend_.release_device(allocator_, block.memory, block.bytes);
  }
  for (const Block& block : outgrown_) backend_.release_device(allocator_, block.memory, block.bytes);
}

const float* AttendWorkspace::inv_freq(const Rope& rope, bool recorded) {
  if (rope.rotary_dim != 0 && inv_freq_.memory == nullptr) {
    Block block;
    grow(block, kMaxHeadDim / 2 * sizeof(float), false, recorded);
    const cudaError_t status = cudaMemcpyAsync(block.memory, rope.inv_freq.data(), rope.inv_freq.size() * sizeof(float),
                                               cudaMemcpyHostToDevice, backend_.stream());
    if (status != cudaSuccess) {
      backend_.release_device(allocator_, block.memory, block.bytes);
      check(status, "cudaMemcpyAsync");
    }
    inv_freq_ = block;
  }
  return static_cast<const float*>(inv_freq_.memory);
}

void AttendWorkspace::reserve(const AttendPlan& plan, bool recorded) {
  constexpr size_t kLeastTickets = 64;
  grow(partials_, plan.partial_floats * sizeof(float), false, recorded);
  if (plan.tickets > 0) grow(tickets_, std::max(plan.tickets, kLeastTickets) * sizeof(int32_t), true, recorded);
  in_graphs_ = in_graphs_ || recorded;
}

void AttendWorkspace::grow(Block& block, size_t bytes, bool zeroed, bool recorded) {
  if (bytes <= block.bytes) return;
  if (recorded) {
    fail(KVQ_E_STATE,
         "kvq_attend needs memory for its first batch of this size: call it once with this batch before capturing a "
         "CUDA graph");
  }
  if (in_graphs_) outgrown_.reserve(outgrown_.size() + 1);
  void* memory = backend_.allocate_device(allocator_, bytes);
  const cudaError_t status = zeroed ? cudaMemsetAsync(memory, 0, bytes, backend_.stream()) : cudaSuccess;
  if (status != cudaSuccess) {
    backend_.release_device(allocator_, memory, bytes);
    check(status, "cudaMemsetAsync");
  }
  if (in_graphs_ && block.memory != nullptr) {
    outgrown_.push_back(block);
  } else {
    backend_.release_device(allocator_, block.memory, block.bytes);
  }
  block = {memory, bytes};
}

}  // namespace kvq::cuda
