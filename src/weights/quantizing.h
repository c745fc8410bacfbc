// Quantizing: a backend takes over finding the codes of panels and factorizing Hessians, the quantizer does the rest.
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
  std::span<float> error_sums;   // what codes miss of numbers, times F
  std::span<float> number_sums;  // numbers, times F
};

class PanelCoder {
 public:
  virtual ~PanelCoder() = default;
  /// As many as keep the device busy, and not for long.
  virtual int32_t panels() const = 0;
  /// Fills in codes and sums, the host's bits. \param batch  of panels() or fewer
  virtual void encode(const PanelBatch& batch) = 0;
};

/// A matrix that is to be quantized.
struct PanelTask {
  Scheme scheme;
  int32_t out;
  int32_t in;
  const Hessian* hessian;  // null: there is none
  bool feed_back;          // errors, as the Hessian tells
};

class Quantizing {
 public:
  virtual ~Quantizing() = default;
  /// Null if the device lacks what the scheme takes: the host's threads code then. The Hessian must outlive it.
  virtual Owned<PanelCoder> make_coder(Allocator& allocator, const PanelTask& task) = 0;
  /// As the host's (cholesky.h), the same bits.
  virtual bool factorize(Allocator& allocator, float* matrix, int32_t n) = 0;
};

}  // namespace kvq::weights
