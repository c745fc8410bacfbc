#pragma once

#include "device/device_blocks.h"
#include "kernels/attend/attend.h"

namespace kvq::cuda {

/// Memory of attend, kept from call to call.
class AttendWorkspace final : public Workspace {
 public:
  AttendWorkspace(CudaBackend& backend, Allocator& allocator);
  ~AttendWorkspace() override;

  /// The cache's frequencies, which never change, in device memory. Throws if `recorded` and they are not there.
  const float* inv_freq(const Rope& rope, bool recorded);
  /// Throws if `recorded` and memory would be needed.
  void reserve(const AttendPlan& plan, bool recorded);

  /// Counts what a call takes beside.
  Allocator& allocator() const { return blocks_.allocator(); }
  float* partials() const { return static_cast<float*>(partials_.memory); }
  int32_t* tickets() const { return static_cast<int32_t*>(tickets_.memory); }

 private:
  using Block = DeviceBlocks::Block;

  CudaBackend& backend_;
  DeviceBlocks blocks_;
  Block inv_freq_;
  Block partials_;
  Block tickets_;
};

}  // namespace kvq::cuda
