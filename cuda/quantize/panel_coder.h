#pragma once

#include "device/device_array.h"
#include "kernels/quantize/quantize.h"
#include "weights/quantizing.h"

#include <array>
#include <optional>

namespace kvq::cuda {

/// Codes of panels, found on the device. Keeps its memory from batch to batch.
class DevicePanelCoder final : public weights::PanelCoder {
 public:
  /// Whether a device codes in this scheme.
  static bool codes(const CudaBackend& backend, const weights::Scheme& scheme);

  DevicePanelCoder(CudaBackend& backend, const CudaBackend::Call& call, Allocator& allocator,
                   const weights::PanelTask& task);

  int32_t panels() const override { return panels_; }
  void encode(const weights::PanelBatch& batch) override;

 private:
  /// Of the panels' numbers, in device memory.
  size_t batch_floats() const;
  TilesToCode tiles_of(size_t segment, int32_t panels) const;
  void encode_all(const CudaBackend::Call& call, size_t segment, int32_t panels) const;
  /// A tile of every panel after the other, as each needs the errors of those behind it.
  void encode_backwards(const CudaBackend::Call& call, size_t segment, int32_t panels) const;
  void encode_tiles(const CudaBackend::Call& call, const TilesToCode& tiles) const;

  CudaBackend& backend_;
  weights::PanelTask task_;
  weights::Segments segments_;
  int32_t panels_;
  int32_t blocks_ = 0;                            // of a search
  std::array<weights::Codebook, 2> codebooks_{};  // of the segments
  DeviceArray<int8_t> levels_;
  DeviceArray<float> numbers_;
  DeviceArray<uint8_t> codes_;
  std::optional<DeviceArray<float>> kept_;  // of blocks of searches
  // With a Hessian:
  std::optional<DeviceArray<float>> factors_;
  std::optional<DeviceArray<float>> errors_;
  std::optional<DeviceArray<float>> error_sums_;
  std::optional<DeviceArray<float>> number_sums_;
};

}  // namespace kvq::cuda
