#pragma once

#include "device_blocks.h"
#include "kernels/linear.h"

namespace kvq::cuda {

/// Inputs of linear layers that are being made ready, kept from call to call.
class LinearWorkspace {
 public:
  LinearWorkspace(CudaBackend& backend, Allocator& allocator) : blocks_(backend, allocator, "qp_linear") {}
  ~LinearWorkspace();
  LinearWorkspace(const LinearWorkspace&) = delete;
  LinearWorkspace& operator=(const LinearWorkspace&) = delete;

  /// Of `rows` rows. Throws if `recorded` and memory would be needed.
  void reserve(int32_t rows, int32_t in, bool recorded);

  float* numbers() const { return static_cast<float*>(numbers_.memory); }
  LinearInputs rotated() const { return {static_cast<uint16_t*>(rotated_.memory), scales(), 0}; }
  LinearInputs plain() const { return {static_cast<uint16_t*>(plain_.memory), scales() + kMostLinearRows, 0}; }

 private:
  using Block = DeviceBlocks::Block;
  float* scales() const { return static_cast<float*>(scales_.memory); }

  DeviceBlocks blocks_;
  Block numbers_;
  Block rotated_;
  Block plain_;
  Block scales_;
};

}  // namespace kvq::cuda
