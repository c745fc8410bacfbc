// The inner loop of k-means, compiled for several instruction sets and chosen at run time.
//
// Every product is summed in the order of channels, without fused multiply-adds: lanes are centres and never meet, so
// results are the same bits on every instruction set. (CMake turns contraction off.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvq::centres {

/// Centres that lie beside each other: the widest vector.
inline constexpr int32_t kLanes = 16;
constexpr int32_t padded(int32_t centres) { return (centres + kLanes - 1) / kLanes * kLanes; }

/// Centres as the kernels read them.
struct PackedCentres {
  const float* numbers;     // [padded(n) / kLanes][dim][kLanes]
  const float* half_norms;  // ‖c‖² / 2, [padded(n)]; infinite where there is no centre
  int32_t n;
  int32_t dim;
};

struct NearestKernels {
  const char* name;

  /// For each of `rows` vectors x [rows][dim] the nearest centre: the first for which ‖c‖² / 2 − c·x is least.
  void (*nearest)(const PackedCentres& centres, const float* vectors, int32_t rows, uint8_t* nearest);
};

/// What the processor at hand can run, best first; the last one runs everywhere.
std::span<const NearestKernels* const> nearest_kernels();

}  // namespace kvq::centres
