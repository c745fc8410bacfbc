#pragma once

#include "device/device.h"
#include "weights/quantizing.h"

namespace kvq::cuda {

/// Codes of panels and factors of Hessians.
class CudaQuantizing final : public weights::Quantizing {
 public:
  explicit CudaQuantizing(Device& device) : device_(device) {}

  Owned<weights::PanelCoder> make_coder(Allocator& allocator, const weights::PanelTask& task) override;
  bool factorize(Allocator& allocator, float* matrix, int32_t n) override;

 private:
  Device& device_;
};

}  // namespace kvq::cuda
