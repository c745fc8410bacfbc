#include "attend/workspace.h"

#include "core/error.h"
#include "device/cuda_error.h"

#include <algorithm>

namespace kvq::cuda {

AttendWorkspace::AttendWorkspace(CudaBackend& backend, Allocator& allocator)
    : backend_(backend), blocks_(backend, allocator, "kvq_attend") {}

AttendWorkspace::~AttendWorkspace() {
  for (const Block& block : {inv_freq_, partials_, tickets_}) blocks_.release(block);
}

const float* AttendWorkspace::inv_freq(const Rope& rope, bool recorded) {
  if (rope.rotary_dim != 0 && inv_freq_.memory == nullptr) {
    Block block;
    blocks_.grow(block, kMaxHeadDim / 2 * sizeof(float), false, recorded);
    const cudaError_t status = cudaMemcpyAsync(block.memory, rope.inv_freq.data(), rope.inv_freq.size() * sizeof(float),
                                               cudaMemcpyHostToDevice, backend_.stream());
    if (status != cudaSuccess) {
      blocks_.release(block);
      check(status, "cudaMemcpyAsync");
    }
    inv_freq_ = block;
  }
  return static_cast<const float*>(inv_freq_.memory);
}

void AttendWorkspace::reserve(const AttendPlan& plan, bool recorded) {
  constexpr size_t kLeastTickets = 64;
  blocks_.grow(partials_, plan.partial_floats * sizeof(float), false, recorded);
  if (plan.tickets > 0) blocks_.grow(tickets_, std::max(plan.tickets, kLeastTickets) * sizeof(int32_t), true, recorded);
  if (recorded) blocks_.keep();
}

}  // namespace kvq::cuda
