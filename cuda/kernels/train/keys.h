// Training of codes for keys: vectors are planar (key_kernels.h), of `length` floats.
#pragma once

#include <cuda_runtime_api.h>
#include <cstdint>

namespace kvq::cuda {

/// Codes as KeyEncoder has them, in device memory.
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
  /// Sums of centres of a key after some stages.
  constexpr int32_t live(int32_t after, int32_t beam) const {
    int64_t sums = 1;
    for (int32_t i = 0; i < after && sums < beam; ++i) sums *= int64_t{codes} * codes;
    return sums < beam ? static_cast<int32_t>(sums) : beam;
  }
};

/// What a sum of centres came from: the sum's number among its key's before the stage, and the codes.
struct KeyStep {
  uint8_t row;
  uint8_t a;
  uint8_t b;
  uint8_t unused;
};

/// One stage of a search for `n` keys, each of which has `live` sums of centres.
struct KeySearch {
  KeyCodes codes;  // of the stage
  int32_t n;
  int32_t live;
  int32_t next_live;
  const float* vectors;   // [n · live][length] what is left
  const float* products;  // [n · live][2 · codes]
  const float* energies;  // [n · live] ‖what is left‖², less that of the key's first
  float* next_vectors;    // [n · next_live]
  float* next_energies;   // [n · next_live]
  KeyStep* steps;         // [n · next_live]
};

/// Twice the products of vectors with all codes of a stage, as KeyKernels::multiply_codes.
cudaError_t launch_key_products(const KeyCodes& stage, const float* vectors, int32_t rows, float* products,
                                cudaStream_t stream);
cudaError_t launch_key_step(const KeySearch& search, cudaStream_t stream);

/// The end of a search: the best sum of each key.
struct KeySearchEnd {
  KeyCodes codes;
  int32_t n;
  int32_t beam;
  const float* vectors;   // [n · live]
  const float* energies;  // [n · live]
  const KeyStep* steps;   // [stages][n · beam], of which a stage uses the first n · live
  float* rest;            // [n][length]; null: not wanted
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
  float* factors;         // [n]{p[codes], q[codes]}; then p is multiplied by what makes W of it
  float* sums;            // [n]{Σ_b W [codes], Σ_a W [codes]}
  uint8_t* indices;       // [n]{a, b}: the nearest centre
  float* far_weights;     // [n] of keys that are their nearest centre's alone, 0 of others
};
/// `least_sum`: kLeastSoftSum.
cudaError_t launch_soft_keys(const SoftKeys& keys, float least_sum, cudaStream_t stream);

/// Indices of codes, and what keys that have them count.
struct KeyChoices {
  const uint8_t* indices;  // [n][stages]{a, b}
  const float* weights;    // [n]; null: 1
  int32_t stages;
  int32_t codes;

  constexpr int32_t lines() const { return 2 * stages * codes; }
};

/// Σ weight · x of the keys with each code: [stages]{a, b}[codes][length]. For `parts` and all that follow see
/// products.cuh.
cudaError_t sum_chosen_vectors(const KeyChoices& choices, const float* vectors, int32_t length, int32_t n,
                               double* parts, double* sums, cudaStream_t stream);
/// Σ weight of keys with each pair of codes a and b of the only stage: [codes][codes].
cudaError_t sum_chosen_pairs(const KeyChoices& choices, int32_t n, double* parts, double* sums, cudaStream_t stream);
/// Σ weight of keys with each pair of any codes: [lines]², the lower triangle.
cudaError_t sum_all_pairs(const KeyChoices& choices, int32_t n, double* parts, double* sums, cudaStream_t stream);
/// Σ p · q of a soft assignment: [codes][codes].
cudaError_t sum_soft_pairs(const SoftKeys& keys, double* parts, double* sums, cudaStream_t stream);
/// Σ W · x: {a, b}[codes][length].
cudaError_t sum_soft_vectors(const SoftKeys& keys, const float* vectors, double* parts, double* sums,
                             cudaStream_t stream);

/// The blocks DᴴWD of the normal equations, {re, im}[stages · codes]², from what sum_all_pairs found. Blocks above the
/// diagonal are zeros.
cudaError_t launch_key_system(const double* pairs, int32_t stages, int32_t codes, double* system, cudaStream_t stream);

/// Σ weight · ‖x‖² as sums of kEnergyParts parts.
inline constexpr int32_t kEnergyParts = 256;
cudaError_t launch_key_energy(const float* vectors, const float* weights, int32_t length, int32_t n, double* parts,
                              cudaStream_t stream);

}  // namespace kvq::cuda
