#pragma once

#include "attend/routes.h"
#include "device/device_arrays.h"
#include "kernels/attend/attend.h"

namespace kvq::cuda {

/// Memory of attend, kept from call to call.
class AttendWorkspace final : public Workspace {
 public:
  AttendWorkspace(Device& device, Allocator& allocator)
      : growth_(device, allocator, "kvq_attend"), routed_(StlAllocator<RoutedSequence>(allocator)) {}

  /// The cache's frequencies, which never change, in device memory. Throws if `recorded` and they are not there.
  const float* inv_freq(const Rope& rope, bool recorded);
  /// Throws if `recorded` and memory would be needed.
  void reserve(const AttendPlan& plan, bool recorded);

  /// Counts memory that a call takes for its duration.
  Allocator& allocator() const { return growth_.allocator(); }
  float* partials() const { return reinterpret_cast<float*>(partials_.memory()); }
  int32_t* tickets() const { return reinterpret_cast<int32_t*>(tickets_.memory()); }
  /// The sequences of a call, which fills them in.
  Vector<RoutedSequence>& routed() { return routed_; }

 private:
  BlockGrowth growth_;
  DeviceBlock inv_freq_;
  DeviceBlock partials_;
  DeviceBlock tickets_;
  Vector<RoutedSequence> routed_;
};

}  // namespace kvq::cuda
