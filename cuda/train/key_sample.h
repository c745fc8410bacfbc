#pragma once

#include "backend/key_sample.h"
#include "device/device_array.h"
#include "kernels/train/keys.h"

#include <optional>

namespace kvq::cuda {

/// Keys in device memory.
class DeviceKeySample final : public KeySample {
 public:
  /// During a call of the backend.
  DeviceKeySample(CudaBackend& backend, const CudaBackend::Call& call, Allocator& allocator, const KeyVectors& keys);

  void restore() override;
  double energy(int32_t n) override;
  double plain_energy() override;
  void read(std::span<const int32_t> keys, float* vectors) override;
  void assign_nearest(const KeyEncoder& stage, KeyStatistics& statistics) override;
  void assign_softly(const KeyEncoder& stage, const SoftKernel& kernel, int32_t n, KeyStatistics& statistics) override;
  void encode(const KeyEncoder& encoder, int32_t beam) override;
  std::span<const uint8_t> indices() override;
  void add_equations(const KeyEncoder& encoder, std::span<std::complex<double>> system,
                     std::span<std::complex<double>> sides) override;

 private:
  class Codes;

  const float* weights() const { return weights_.size() == 0 ? nullptr : weights_.data(); }
  double energy(int32_t n, const float* weights);
  void search(const CudaBackend::Call& call, const KeyCodes& codes, int32_t beam, bool keep_rest);
  void require_indices(int32_t stages);
  KeyChoices choices(int32_t stages, int32_t codes) const;

  CudaBackend& backend_;
  Allocator& allocator_;
  int32_t n_;
  int32_t length_;
  DeviceArray<float> keys_;
  DeviceArray<float> rest_;
  DeviceArray<float> weights_;
  std::optional<DeviceArray<uint8_t>> indices_;
  Vector<uint8_t> host_indices_;
};

}  // namespace kvq::cuda
