#pragma once

#include "backend/linear.h"
#include "device/device_arrays.h"
#include "kernels/linear/linear.h"

#include <memory>

namespace kvq::cuda {

class LinearWorkspace;

/// A packed matrix in device memory, with the levels of its codes.
class DeviceMatrix final : public Resident {
 public:
  DeviceMatrix(Device& device, Allocator& allocator, const weights::Matrix& matrix,
               std::shared_ptr<LinearWorkspace> space);

  static const DeviceMatrix& of(const Resident* matrix) { return static_cast<const DeviceMatrix&>(*matrix); }

  const LinearMatrix& tables() const { return tables_; }
  const uint8_t* signs() const { return signs_; }  // null in FP16
  LinearWorkspace& space() const { return *space_; }
  /// A copy in host memory; waits for the device.
  weights::Matrix read(Device& device) const;

 private:
  Allocator& allocator_;
  std::shared_ptr<LinearWorkspace> space_;
  weights::MatrixShape shape_;
  double error_;
  double proxy_error_;
  DeviceArrays arrays_;
  LinearMatrix tables_{};
  const uint8_t* signs_ = nullptr;
};

}  // namespace kvq::cuda
