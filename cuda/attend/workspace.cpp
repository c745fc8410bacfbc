#include "attend/workspace.h"

#include <algorithm>
#include <utility>

namespace kvq::cuda {

const float* AttendWorkspace::inv_freq(const Rope& rope, bool recorded) {
  if (rope.rotary_dim != 0 && inv_freq_.memory() == nullptr) {
    DeviceBlock block;
    growth_.grow(block, kMaxHeadDim / 2 * sizeof(float), false, recorded);
    check(cudaMemcpyAsync(block.memory(), rope.inv_freq.data(), rope.inv_freq.size() * sizeof(float),
                          cudaMemcpyHostToDevice, growth_.device().stream()),
          "cudaMemcpyAsync");
    inv_freq_ = std::move(block);
  }
  return reinterpret_cast<const float*>(inv_freq_.memory());
}

void AttendWorkspace::reserve(const AttendPlan& plan, bool recorded) {
  constexpr size_t kLeastTickets = 64;
  growth_.grow(partials_, plan.partial_floats * sizeof(float), false, recorded);
  if (plan.tickets > 0) growth_.grow(tickets_, std::max(plan.tickets, kLeastTickets) * sizeof(int32_t), true, recorded);
  if (recorded) growth_.keep();
}

}  // namespace kvq::cuda
