// Interface of a backend that finds the codes of panels and factorizes Hessians for the quantizer.
#pragma once

#include "core/memory.h"
#include "weights/scheme.h"

#include <cstdint>
#include <span>

namespace kvq::weights {

class Hessian;

/// Panels in host memory.
struct PanelBatch {
  int32_t panels;
  std::span<const float> numbers;  // [panels][16][in]: rotated rows of unit variance, columns in coding order
  std::span<uint8_t> codes;        // [panels][panel_bytes]
  // With a Hessian H = F D Fᵀ, like `numbers`:
  std::span<float> error_sums;   // errors of codes, times F
  std::span<float> number_sums;  // numbers, times F
};

class PanelCoder {
 public:
  virtual ~PanelCoder() = default;
  /// Panels that keep the device busy, but only briefly.
  virtual int32_t panels() const = 0;
  /// Fill in codes and sums, bit for bit as the host. \param batch  of panels() or fewer
  virtual void encode(const PanelBatch& batch) = 0;
};

/// Matrix to be quantized.
struct PanelTask {
  Scheme scheme;
  int32_t out;
  int32_t in;
  const Hessian* hessian;  // null: none
  bool feed_back;          // errors, by the Hessian
};

class Quantizing {
 public:
  virtual ~Quantizing() = default;
  /// Null if the device does not support the scheme: the host's threads code then. The Hessian must outlive the coder.
  virtual Owned<PanelCoder> make_coder(Allocator& allocator, const PanelTask& task) = 0;
  /// Factorize bit for bit as the host (cholesky.h).
  virtual bool factorize(Allocator& allocator, float* matrix, int32_t n) = 0;
};

}  // namespace kvq::weights
