// Products with packed matrices. Inputs are rotated and become halves first; codes become halves as they are read, and
// are multiplied on tensor cores.
#pragma once

#include "core/host_device.h"
#include "weights/scheme.h"

#include <cuda_runtime_api.h>
#include <cstdint>

namespace kvq::cuda {

/// Rows of inputs that are made ready at a time.
inline constexpr int32_t kMostLinearRows = 256;

/// Inputs as matrices are multiplied by: halves times a power of two of their row, [rows][in]. A row that has NaN or
/// infinity is zeros times NaN.
struct LinearInputs {
  uint16_t* halves;
  float* scales;  // [rows]
};

/// Makes inputs ready.
struct InputRows {
  const void* x;  // [rows][in] of a kvq_dtype
  int32_t dtype;
  int32_t rows;
  int32_t in;
  const uint8_t* signs;  // of the rotation; null: not rotated
  float* rotated;        // [rows][in]; where they are rotated
  LinearInputs to;
};
cudaError_t launch_linear_inputs(const InputRows& rows, cudaStream_t stream);

/// Columns of a matrix that are written in the same code.
struct LinearSegment {
  int32_t first_column;
  int32_t columns;
  int64_t begin;  // of its tiles in a panel, in bytes
  float unit;
  const int8_t* levels;
  int32_t n_levels;
  int32_t index_bits;
  uint32_t addend;
};

struct LinearMatrix {
  weights::Scheme scheme;
  int32_t out;
  int32_t in;
  const uint8_t* codes;  // [panels][panel_bytes]
  int64_t panel_bytes;   // a multiple of 4
  float scale;
  const uint16_t* row_scales;  // halves, [out]; null in FP16
  const float* bias;           // [out], or null
  LinearSegment segments[2];
};

/// y = x · Wᵀ + bias, [rows][out] of a kvq_dtype.
struct LinearOutputs {
  void* y;
  int32_t dtype;
  int32_t rows;
};
cudaError_t launch_linear(const LinearMatrix& matrix, const LinearInputs& inputs, const LinearOutputs& outputs,
                          cudaStream_t stream);

}  // namespace kvq::cuda
