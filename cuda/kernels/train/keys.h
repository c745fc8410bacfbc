// Training of key codebooks: vectors are planar (key_kernels.h), with `length` floats.
#pragma once

#include <cuda_runtime_api.h>
#include <cstdint>

namespace kvq::cuda {

/// KeyEncoder's codes in device memory.
struct KeyCodes {
  const float* rows;   // [stages · codes][length]
  const float* norms;  // [stages · codes of b][width of a]
  int32_t stages;
  int32_t codes;  // a power of two
  int32_t width;
  int32_t length;

  constexpr KeyCodes stage(int32_t number) const {
    KeyCodes one = *this;
    one.rows += int64_t{number} * codes * length;
    one.norms += int64_t{number} * codes * width;
    one.stages = 1;
    return one;
  }
  /// Sums of centres per key after `after` stages.
  constexpr int32_t live(int32_t after, int32_t beam) const {
    int64_t sums = 1;
    for (int32_t i = 0; i < after && sums < beam; ++i) sums *= int64_t{codes} * codes;
    return sums < beam ? static_cast<int32_t>(sums) : beam;
  }
};

/// Origin of a sum of centres: index of its predecessor among the key's sums, and the codes added.
struct KeyStep {
  uint8_t row;
  uint8_t a;
  uint8_t b;
  uint8_t unused;
};

/// One stage of a search for `n` keys with `live` sums of centres each.
struct KeySearch {
  KeyCodes codes;  // a single stage
  int32_t n;
  int32_t live;
  int32_t next_live;
  const float* vectors;   // [n · live][length]: residuals
  const float* products;  // [n · live][2 · codes]
  const float* energies;  // [n · live]: ‖residual‖², relative to the key's first
  float* next_vectors;    // [n · next_live]
  float* next_energies;   // [n · next_live]
  KeyStep* steps;         // [n · next_live]
};

/// Computes twice the products of vectors with all codes of a stage, as KeyKernels::multiply_codes.
cudaError_t launch_key_products(const KeyCodes& stage, const float* vectors, int32_t rows, float* products,
                                cudaStream_t stream);
cudaError_t launch_key_step(const KeySearch& search, cudaStream_t stream);

/// End of a search: selects the best sum of each key.
struct KeySearchEnd {
  KeyCodes codes;
  int32_t n;
  int32_t beam;
  const float* vectors;   // [n · live]
  const float* energies;  // [n · live]
  const KeyStep* steps;   // [stages][n · beam]; each stage uses the first n · live
  float* rest;            // [n][length]; null: not stored
  uint8_t* indices;       // [n][stages]{a, b}
};
cudaError_t launch_key_search_end(const KeySearchEnd& end, cudaStream_t stream);

/// Soft assignments of n keys to the centres of a stage (SoftKernel).
struct SoftKeys {
  KeyCodes stage;
  float scale;
  const float* code_norms;  // [width]
  const float* k;           // [width][width]
  const float* transposed;
  int32_t n;
  const float* weights;   // [n]; null: 1
  const float* products;  // [n][2 · codes]
  float* factors;         // [n]{p[codes], q[codes]}; then p is scaled to normalize W
  float* sums;            // [n]{Σ_b W [codes], Σ_a W [codes]}
  uint8_t* indices;       // [n]{a, b}: the nearest centre
  float* far_weights;     // [n]: weights of keys assigned to their nearest centre alone, 0 for others
};
/// `least_sum`: kLeastSoftSum.
cudaError_t launch_soft_keys(const SoftKeys& keys, float least_sum, cudaStream_t stream);

/// Code indices and weights of keys.
struct KeyChoices {
  const uint8_t* indices;  // [n][stages]{a, b}
  const float* weights;    // [n]; null: 1
  int32_t stages;
  int32_t codes;

  constexpr int32_t lines() const { return 2 * stages * codes; }
};

/// Sums weight · x of the keys with each code: [stages]{a, b}[codes][length]. For `parts` here and below see
/// products.cuh.
cudaError_t sum_chosen_vectors(const KeyChoices& choices, const float* vectors, int32_t length, int32_t n,
                               double* parts, double* sums, cudaStream_t stream);
/// Sums weights of keys with each pair of codes a and b, for a single stage: [codes][codes].
cudaError_t sum_chosen_pairs(const KeyChoices& choices, int32_t n, double* parts, double* sums, cudaStream_t stream);
/// Sums weights of keys with each pair of any codes: [lines]², the lower triangle.
cudaError_t sum_all_pairs(const KeyChoices& choices, int32_t n, double* parts, double* sums, cudaStream_t stream);
/// Sums p · q of a soft assignment: [codes][codes].
cudaError_t sum_soft_pairs(const SoftKeys& keys, double* parts, double* sums, cudaStream_t stream);
/// Sums W · x: {a, b}[codes][length].
cudaError_t sum_soft_vectors(const SoftKeys& keys, const float* vectors, double* parts, double* sums,
                             cudaStream_t stream);

/// Computes the blocks DᴴWD of the normal equations, {re, im}[stages · codes]², from the result of sum_all_pairs.
/// Blocks above the diagonal are zeros.
cudaError_t launch_key_system(const double* pairs, int32_t stages, int32_t codes, double* system, cudaStream_t stream);

/// Parts of the sum Σ weight · ‖x‖².
inline constexpr int32_t kEnergyParts = 256;
cudaError_t launch_key_energy(const float* vectors, const float* weights, int32_t length, int32_t n, double* parts,
                              cudaStream_t stream);

}  // namespace kvq::cuda
