#pragma once

#include "backend/centre_sample.h"
#include "device/device_array.h"
#include "kernels/train/centres.h"

namespace kvq::cuda {

/// Vectors in device memory.
class DeviceCentreSample final : public CentreSample {
 public:
  /// During a call of the backend. The vectors come with reload().
  DeviceCentreSample(CudaBackend& backend, Allocator& allocator, int32_t centres, const CentreVectors& vectors);

  void reload() override;
  void assign(int32_t n, std::span<const float> centres, float* distances) override;
  void move_to_means(int32_t n, std::span<float> centres, std::span<int32_t> counts) override;

 private:
  CudaBackend& backend_;
  Allocator& allocator_;
  int32_t n_centres_;
  CentreVectors host_;
  DeviceArray<float> vectors_;
  DeviceArray<uint8_t> nearest_;
};

}  // namespace kvq::cuda
