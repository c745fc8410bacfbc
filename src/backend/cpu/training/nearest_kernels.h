// The inner loop of k-means, compiled for several instruction sets and chosen at run time.
//
// Every product is summed in the order of channels, without fused multiply-adds: lanes are centres and never meet, so
// results have the same bits on every instruction set. (CMake turns contraction off.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvq::centres {

/// Interleaved centres: the widest vector.
inline constexpr int32_t kLanes = 16;
constexpr int32_t padded(int32_t centres) { return (centres + kLanes - 1) / kLanes * kLanes; }

/// Centres in the layout that kernels read.
struct PackedCentres {
  const float* numbers;     // [padded(n) / kLanes][dim][kLanes]
  const float* half_norms;  // ‖c‖² / 2, [padded(n)]; infinite for padding
  int32_t n;
  int32_t dim;
};

struct NearestKernels {
  const char* name;

  /// Nearest centre of each of `rows` vectors x [rows][dim]: the first with the least ‖c‖² / 2 − c·x.
  void (*nearest)(const PackedCentres& centres, const float* vectors, int32_t rows, uint8_t* nearest);
};

/// Kernels that this processor can run, best first; the last one runs everywhere.
std::span<const NearestKernels* const> nearest_kernels();

}  // namespace kvq::centres
