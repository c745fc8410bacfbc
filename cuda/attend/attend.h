#pragma once

#include "backend/attention.h"
#include "device/device.h"

namespace kvq::cuda {

/// Attention over pages.
class CudaAttention final : public Attention {
 public:
  explicit CudaAttention(Device& device);

  Owned<Workspace> make_workspace(Allocator& allocator) override;
  uint64_t workspace_bytes(std::span<const ExpectedCall> calls) override;
  void reserve(const ExpectedCall& call, Workspace& workspace) override;
  void require_known_sizes(int32_t queries) const override;
  void attend(const AttendBatch& batch, Workspace& workspace) override;
  const float* rotate(const StreamRotation& heads, Workspace& workspace) override;

 private:
  Device& device_;
};

}  // namespace kvq::cuda
