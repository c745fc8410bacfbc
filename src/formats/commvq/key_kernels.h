// The inner loops of encoding and training keys, compiled for several instruction sets and chosen at run time.
//
// Every output is summed in one fixed order, without fused multiply-adds: lanes are codes or channels and never meet,
// so results have the same bits on every instruction set. (CMake turns contraction off.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvq::keys {

/// Padding of rows of codes and channels, in floats: the widest vector.
inline constexpr int32_t kLanes = 16;
constexpr int32_t padded(int32_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

/// Vectors of pairs are planar: the real parts, then the imaginary parts, each padded.
constexpr size_t vector_floats(int32_t group) { return 2 * static_cast<size_t>(padded(group)); }

struct KeyKernels {
  const char* name;

  /// Twice the products of vectors with all codes: `products` [rows]{2 Re conj(z)·x, 2 Im conj(z)·x}, each `width`
  /// long. `planes` holds 2z, [group]{re[width], im[width]}; `width` is padded(codes).
  void (*multiply_codes)(const float* planes, int32_t group, int32_t width, const float* vectors, int32_t rows,
                         float* products);

  /// costs[a] = min over b of ‖x − c(a, b)‖² − ‖x‖² = n_ab − u_a − v_b, from one row of products. `norms` is n_ab,
  /// [codes b][width a].
  void (*nearest_second)(const float* products, const float* norms, int32_t codes, int32_t width, float* costs);

  /// target = source − (a + i·b) of planar vectors with `plane` floats a part.
  void (*subtract_centre)(const float* source, const float* a, const float* b, int32_t plane, float* target);

  /// out[rows][columns] += leftᵀ right of [n][rows] and [n][columns]; rows and columns are multiples of kLanes.
  void (*add_products)(const float* left, int32_t rows, const float* right, int32_t columns, int32_t n, float* out);

  /// out[n][columns] = left · right of [n][inner] and [inner][columns]; columns is a multiple of kLanes.
  void (*multiply)(const float* left, int32_t inner, const float* right, int32_t columns, int32_t n, float* out);

  /// x[i] = e^(scale · (x[i] − bias[i] − the largest such difference)), with error 2e-7; n is a multiple of kLanes.
  void (*exponentials)(const float* bias, float scale, int32_t n, float* x);
};

/// Kernels that this processor can run, best first; the last one runs everywhere.
std::span<const KeyKernels* const> key_kernels();

}  // namespace kvq::keys
