#pragma once

#include "backend/centre_sample.h"
#include "backend/cpu/training/nearest_kernels.h"
#include "core/memory.h"
#include "core/parallel.h"

namespace kvq::cpu {

/// Vectors in host memory.
class HostCentreSample final : public CentreSample {
 public:
  HostCentreSample(Allocator& allocator, Parallel& parallel, int32_t centres, const CentreVectors& vectors,
                   const centres::NearestKernels& kernels = *centres::nearest_kernels().front());

  void reload() override {}
  void assign(int32_t n, std::span<const float> centres, float* distances) override;
  void move_to_means(int32_t n, std::span<float> centres, std::span<int32_t> counts) override;

 private:
  Parallel& parallel_;
  const centres::NearestKernels& kernels_;
  int32_t n_centres_;
  CentreVectors vectors_;
  Vector<float> packed_;      // PackedCentres::numbers
  Vector<float> half_norms_;  // PackedCentres::half_norms
  Vector<uint8_t> nearest_;   // [n]
  Vector<int32_t> order_;     // [n] vector indices sorted by centre
  Vector<int32_t> begins_;    // [centres + 1] offsets into order_
};

}  // namespace kvq::cpu
