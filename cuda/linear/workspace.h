#pragma once

#include "device/device_blocks.h"
#include "kernels/linear/linear.h"

namespace kvq::cuda {

/// Inputs of linear layers that are being made ready, kept from call to call.
class LinearWorkspace {
 public:
  LinearWorkspace(CudaBackend& backend, Allocator& allocator) : blocks_(backend, allocator, "qp_linear") {}
  ~LinearWorkspace();
  LinearWorkspace(const LinearWorkspace&) = delete;
  LinearWorkspace& operator=(const LinearWorkspace&) = delete;

  /// Room for rows that are made ready, in tiles unless `tile_rows` is 0. Throws if `recorded` and memory would be
  /// needed.
  LinearInputs reserve(const InputRows& rows, int32_t tile_rows, bool recorded);
  /// What wide rows are rotated in; null if none has been reserved.
  float* numbers() const { return static_cast<float*>(numbers_.memory); }

 private:
  using Block = DeviceBlocks::Block;
  DeviceBlocks blocks_;
  Block numbers_;
  Block rotated_;
  Block plain_;
  Block scales_;
};

}  // namespace kvq::cuda
