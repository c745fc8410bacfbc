// Training's samples in device memory.
#pragma once

#include "backend/training.h"
#include "core/sizes.h"
#include "device/device_arrays.h"
#include "kernels/train/centres.h"
#include "kernels/train/keys.h"
#include "kernels/train/sum_parts.h"
#include "kernels/train/values.h"

#include <optional>

namespace kvq::cuda {

/// Samples of trainers.
class CudaTraining final : public Training {
 public:
  explicit CudaTraining(Device& device) : device_(device) {}

  Owned<KeySample> make_key_sample(Allocator& allocator, const KeyVectors& keys) override;
  Owned<ValueSample> make_value_sample(Allocator& allocator, const UnitVectors& vectors) override;
  Owned<CentreSample> make_centre_sample(Allocator& allocator, int32_t centres, const CentreVectors& vectors) override;

 private:
  Device& device_;
};

/// [rows][columns] sums of products over `n` vectors, which `sum(parts, sums)` launches (products.cuh).
template <typename Sum>
DeviceArray<double> sum_on_device(Device& device, const Call& call, Allocator& account, int32_t rows, int32_t columns,
                                  int32_t n, const Sum& sum) {
  const auto parts = static_cast<size_t>(SumParts(rows, columns, n).count);
  DeviceArray<double> sums(device, account, size(rows, columns));
  std::optional<DeviceArray<double>> of_parts;
  if (parts > 1) of_parts.emplace(device, account, parts * sums.size());
  call.require(sum(of_parts ? of_parts->data() : sums.data(), sums.data()), "kernel of training");
  return sums;
}

/// Waits for the device.
template <typename Number>
Vector<Number> to_host(const Call& call, Allocator& allocator, const DeviceArray<Number>& array) {
  Vector<Number> numbers(array.size(), allocator);
  download(call, array.data(), std::span<Number>(numbers));
  return numbers;
}

/// Keys in device memory.
class DeviceKeySample final : public KeySample {
 public:
  /// During a Call.
  DeviceKeySample(Device& device, const Call& call, Allocator& allocator, const KeyVectors& keys);

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
  void search(const Call& call, const KeyCodes& codes, int32_t beam, bool keep_rest);
  void require_indices(int32_t stages);
  KeyChoices choices(int32_t stages, int32_t codes) const;

  Device& device_;
  Allocator& allocator_;
  int32_t n_;
  int32_t length_;
  DeviceArray<float> keys_;
  DeviceArray<float> rest_;
  DeviceArray<float> weights_;
  std::optional<DeviceArray<uint8_t>> indices_;
  Vector<uint8_t> host_indices_;
};

/// Values in device memory.
class DeviceValueSample final : public ValueSample {
 public:
  /// During a Call. The caller fills units().
  DeviceValueSample(Device& device, Allocator& allocator, size_t width, size_t tokens, size_t held_out);

  float* units() { return units_.data(); }

  double encode(const ValueCode& code) override;
  void moments(std::span<double> sums) override;
  void code_products(std::span<double> normal, std::span<double> sides) override;
  void sign_products(std::span<double> sums) override;
  Owned<ValueSample> residuals(Allocator& allocator, const ValueCode& code, double& norm) override;

 private:
  class Code;
  template <typename Sum>
  void sum(const Call& call, int32_t rows, int32_t columns, std::span<double> sums, const Sum& sum);
  FoundBits found(int32_t first) const;
  double held_out_error(const Call& call, const DeviceValueCode& code);

  Device& device_;
  Allocator& allocator_;
  int32_t width_;
  int32_t tokens_;
  int32_t training_;
  DeviceArray<float> units_;
  DeviceArray<float> scales_;
  int32_t bits_ = 0;  // of the codes found
  std::optional<DeviceArray<uint32_t>> packed_;
};

/// Vectors in device memory.
class DeviceCentreSample final : public CentreSample {
 public:
  /// During a Call. reload() copies the vectors.
  DeviceCentreSample(Device& device, Allocator& allocator, int32_t centres, const CentreVectors& vectors);

  void reload() override;
  void assign(int32_t n, std::span<const float> centres, float* distances) override;
  void move_to_means(int32_t n, std::span<float> centres, std::span<int32_t> counts) override;

 private:
  Device& device_;
  Allocator& allocator_;
  int32_t n_centres_;
  CentreVectors host_;
  DeviceArray<float> vectors_;
  DeviceArray<uint8_t> nearest_;
};

}  // namespace kvq::cuda
