// Products with packed matrices, and which kernel computes them.
#pragma once

#include "backend/linear.h"
#include "device/device_arrays.h"
#include "kernels/linear/linear.h"
#include "linear/measured_kernels.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>

namespace kvq::cuda {

/// Rotated and rounded inputs of linear layers, kept from call to call.
class LinearWorkspace {
 public:
  LinearWorkspace(Device& device, Allocator& allocator) : growth_(device, allocator, "qp_linear") {}

  /// Reserves room for prepared rows, in tiles unless `tile_rows` is 0. Throws if `recorded` and memory would be
  /// needed.
  LinearInputs reserve(const InputRows& rows, int32_t tile_rows, bool recorded);
  /// Where wide rows are rotated; null if none has been reserved.
  float* numbers() const { return reinterpret_cast<float*>(numbers_.memory()); }

 private:
  BlockGrowth growth_;
  DeviceBlock numbers_;
  DeviceBlock rotated_;
  DeviceBlock plain_;
  DeviceBlock scales_;
};

/// Consecutive matrices of a batch, of one scheme, that one launch multiplies by.
class LaunchGroup {
 public:
  /// \param first        matrix of the batch.
  /// \param rows_before  rows of the batch that were multiplied before.
  LaunchGroup(const LinearBatch& batch, size_t first, size_t rows_before);

  LinearProducts products() const { return {products_.data(), n_}; }
  const uint8_t* signs() const { return signs_; }

 private:
  std::array<LinearProduct, kMostTogether> products_{};
  size_t n_ = 0;
  const uint8_t* signs_;
};

static_assert(kMostTogether == LinearShape::kMostMatrices);
LinearShape shape_of(LinearProducts products, int32_t rows);

/// Calls pass(rows, rows before) for as many rows at a time as inputs are prepared for.
template <typename Pass>
void for_each_pass(int32_t rows, int32_t in, const Pass& pass) {
  // Work space of wide rows is larger.
  const int32_t most = std::min(rows, in > kMostTransformed ? kMostTileRows : kMostLinearRows);
  for (int32_t first = 0; first < rows; first += most) pass(std::min(most, rows - first), static_cast<size_t>(first));
}

/// \param inputs  prepared as the kernel reads them, unless it prepares them itself.
cudaError_t launch_products(LinearProducts products, const InputRows& rows, const LinearKernel& kernel,
                            const std::optional<LinearInputs>& inputs, const LinearDevice& device, cudaStream_t stream);

/// Which kernel a device takes for which products: the measured one, otherwise the estimated one.
class KernelChoice {
 public:
  explicit KernelChoice(Device& device);

  const LinearDevice& device() const { return linear_device_; }
  LinearKernel choose(LinearProducts products, const InputRows& rows) const;
  /// From the shape and the device alone.
  LinearKernel estimate(LinearProducts products, const InputRows& rows) const;

  /// Calls use(kernel) for all kernels that the device can run.
  template <typename Use>
  void for_each_candidate(LinearProducts products, const InputRows& rows, const Use& use) const {
    const auto offer = [&](const LinearKernel& kernel) {
      if (can_run(kernel, products, rows)) use(kernel);
    };
    offer(kFusedInputs);
    offer(kFewRows);
    for (const int32_t tile_rows : kTileRowCounts) {
      for (int32_t cluster = 1; cluster <= kMostCluster; ++cluster) offer({false, tile_rows, cluster});
    }
  }

  /// Adding to it changes what choose() returns.
  MeasuredKernels& measured();

 private:
  bool can_run(const LinearKernel& kernel, LinearProducts products, const InputRows& rows) const;

  int32_t device_index_;
  LinearDevice linear_device_{};
  std::optional<MeasuredKernels> measured_;
};

/// Products with packed matrices.
class CudaLinear final : public Linear {
 public:
  explicit CudaLinear(Device& device) : device_(device), kernels_(device) {}

  KernelChoice& kernels() { return kernels_; }

  Owned<Resident> make_resident(Allocator& allocator, weights::Matrix&& matrix) override;
  const weights::Matrix& read(const Resident& matrix, std::optional<weights::Matrix>& copy) override;
  void multiply(const LinearBatch& batch) override;

 private:
  Device& device_;
  KernelChoice kernels_;
  std::weak_ptr<LinearWorkspace> space_;  // of all matrices
};

/// Measures kernels.
class CudaTuning final : public Tuning {
 public:
  CudaTuning(Device& device, KernelChoice& kernels) : device_(device), kernels_(kernels) {}

  void tune(Allocator& allocator, std::span<const Resident* const> matrices, int32_t batch) override;
  std::string save() override;
  void load(std::string_view text) override;

 private:
  Device& device_;
  KernelChoice& kernels_;
};

}  // namespace kvq::cuda
