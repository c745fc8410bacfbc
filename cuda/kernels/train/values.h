// Training of value codebooks: vectors are rows of `width` floats, codes rows of `bits`.
#pragma once

#include <cuda_runtime_api.h>
#include <cstdint>

namespace kvq::cuda {

/// ValueEncoder's codes in device memory.
struct DeviceValueCode {
  int32_t width;
  int32_t bits;
  int32_t stages;
  const float* codes;          // [bits][width]
  const float* offset;         // [width]
  const float* proposal;       // [bits][width]
  const float* proposal_bias;  // [bits]
  // Derived tables.
  float* gram;             // [bits]²
  float* half_norms;       // [bits]
  float* offsets;          // [stages][width]: decoder offsets while only bits up to a stage are known
  float* offset_products;  // [stages][bits]
  double* offset_norms;    // [stages]

  constexpr int32_t stage_end(int32_t stage) const { return stage + 1 == stages ? bits : (stage + 1) * width; }
};
/// Fills the derived tables.
cudaError_t launch_prepare_code(const DeviceValueCode& code, cudaStream_t stream);

/// Vectors encoded together.
struct ValueSearch {
  int32_t n;
  const float* units;  // [n][width]
  float* rest;         // [n][width]
  float* bits;         // [n][bits] 0 or 1
  float* wanted;       // [n][bits] products of codes and units
  float* decoded;      // [n][bits] products of codes and decoded vectors
  float* scales;       // [n]
};
/// Proposes the bits of a stage and flips those up to it; scales minimize the error.
cudaError_t launch_value_stage(const DeviceValueCode& code, const ValueSearch& search, int32_t stage,
                               cudaStream_t stream);

/// Encoded bits and scales.
struct FoundBits {
  uint32_t* packed;  // [n][words]
  float* scales;     // [n], FP16
  int32_t words;
};
cudaError_t launch_pack_bits(const DeviceValueCode& code, const ValueSearch& search, const FoundBits& found,
                             cudaStream_t stream);

/// rest = units − vectors decoded from bits and scales.
cudaError_t launch_subtract_values(const DeviceValueCode& code, const FoundBits& found, const float* units, int32_t n,
                                   float* rest, cudaStream_t stream);
/// Computes the squared length of each of n rows; normalizes the rows if `normalize`.
cudaError_t launch_row_norms(float* rows, int32_t width, int32_t n, bool normalize, double* squares,
                             cudaStream_t stream);

// See the methods of ValueSample; for `parts` see products.cuh.
cudaError_t sum_moments(const float* units, int32_t width, int32_t n, double* parts, double* sums, cudaStream_t stream);
cudaError_t sum_code_pairs(const FoundBits& found, int32_t bits, int32_t n, double* parts, double* sums,
                           cudaStream_t stream);
cudaError_t sum_code_sides(const FoundBits& found, int32_t bits, const float* units, int32_t width, int32_t n,
                           double* parts, double* sums, cudaStream_t stream);
cudaError_t sum_signs(const FoundBits& found, int32_t bits, const float* units, int32_t width, int32_t n, double* parts,
                      double* sums, cudaStream_t stream);

}  // namespace kvq::cuda
