#pragma once

#include "attend/routes.h"
#include "device/device_arrays.h"
#include "kernels/attend/attend.h"

#include <algorithm>
#include <utility>

namespace kvq::cuda {

/// Memory of attend, kept from call to call.
class AttendWorkspace final : public Workspace {
 public:
  AttendWorkspace(Device& device, Allocator& allocator)
      : growth_(device, allocator, "kvq_attend"), frequencies_(allocator), routed_(allocator) {}

  /// Frequencies of a layer of the cache, which never change, in device memory. Throws if `recorded` and they are not
  /// there.
  const float* inv_freq(const Rope& rope, bool recorded) {
    if (rope.rotary_dim == 0) return nullptr;
    auto found = std::ranges::find(frequencies_, &rope, &Frequencies::rope);
    if (found == frequencies_.end()) {
      DeviceBlock block;
      growth_.grow(block, std::max<size_t>(rope.inv_freq.size(), kMaxHeadDim / 2) * sizeof(float), false, recorded);
      check(cudaMemcpyAsync(block.memory(), rope.inv_freq.data(), rope.inv_freq.size() * sizeof(float),
                            cudaMemcpyHostToDevice, growth_.device().stream()),
            "cudaMemcpyAsync");
      frequencies_.push_back({&rope, std::move(block)});
      found = std::prev(frequencies_.end());
    }
    return reinterpret_cast<const float*>(found->numbers.memory());
  }
  /// Throws if `recorded` and memory would be needed.
  void reserve(const AttendLaunch& launch, bool recorded) {
    constexpr size_t kLeastTickets = 64;
    growth_.grow(partials_, launch.partial_floats * sizeof(float), false, recorded);
    if (launch.tickets > 0) {
      growth_.grow(tickets_, std::max(launch.tickets, kLeastTickets) * sizeof(int32_t), true, recorded);
    }
    if (recorded) growth_.keep();
  }

  /// Memory of rotate(). Throws if `recorded` and memory would be needed.
  float* stream(StreamTensor tensor, size_t floats, bool recorded) {
    DeviceBlock& block = streams_[static_cast<size_t>(tensor)];
    growth_.grow(block, floats * sizeof(float), false, recorded);
    if (recorded) growth_.keep();
    return reinterpret_cast<float*>(block.memory());
  }
  /// Counts memory that a call takes for its duration.
  Allocator& allocator() const { return growth_.allocator(); }
  float* partials() const { return reinterpret_cast<float*>(partials_.memory()); }
  int32_t* tickets() const { return reinterpret_cast<int32_t*>(tickets_.memory()); }
  /// The sequences of a call, which fills them in.
  Vector<RoutedSequence>& routed() { return routed_; }

 private:
  struct Frequencies {
    const Rope* rope;
    DeviceBlock numbers;
  };

  BlockGrowth growth_;
  Vector<Frequencies> frequencies_;  // of layers that differ
  DeviceBlock partials_;
  DeviceBlock tickets_;
  DeviceBlock streams_[kStreamTensors];
  Vector<RoutedSequence> routed_;
};

}  // namespace kvq::cuda
