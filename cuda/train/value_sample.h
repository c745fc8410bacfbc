#pragma once

#include "backend/value_sample.h"
#include "device/device_array.h"
#include "kernels/train/values.h"

#include <optional>

namespace kvq::cuda {

/// Values in device memory.
class DeviceValueSample final : public ValueSample {
 public:
  /// During a call of the backend; the vectors are still to come.
  DeviceValueSample(CudaBackend& backend, Allocator& allocator, size_t width, size_t tokens, size_t held_out);

  float* units() { return units_.data(); }

  double encode(const ValueCode& code) override;
  void moments(std::span<double> sums) override;
  void code_products(std::span<double> normal, std::span<double> sides) override;
  void sign_products(std::span<double> sums) override;
  Owned<ValueSample> residuals(Allocator& allocator, const ValueCode& code, double& norm) override;

 private:
  class Code;
  template <typename Sum>
  void sum(const CudaBackend::Call& call, int32_t rows, int32_t columns, std::span<double> sums, const Sum& sum);
  FoundBits found(int32_t first) const;
  double held_out_error(const CudaBackend::Call& call, const DeviceValueCode& code);

  CudaBackend& backend_;
  Allocator& allocator_;
  int32_t width_;
  int32_t tokens_;
  int32_t training_;
  DeviceArray<float> units_;
  DeviceArray<float> scales_;
  int32_t bits_ = 0;  // of what was found
  std::optional<DeviceArray<uint32_t>> packed_;
};

}  // namespace kvq::cuda
