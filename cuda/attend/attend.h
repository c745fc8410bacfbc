#pragma once

#include "backend/attention.h"
#include "device/device.h"

namespace kvq::cuda {

/// Attention over pages.
class CudaAttention final : public Attention {
 public:
  explicit CudaAttention(Device& device);

  Owned<Workspace> make_workspace(Allocator& allocator) override;
  uint64_t workspace_bytes(const ExpectedCall& call) override;
  void attend(const AttendBatch& batch, Workspace& workspace) override;

 private:
  Device& device_;
};

}  // namespace kvq::cuda
