// Products with packed matrices. Tables in shared memory decode codes to FP16 as they are read; tensor cores multiply
// them by rotated FP16 inputs.
#pragma once

#include "core/host_device.h"
#include "weights/scheme.h"

#include <cuda_runtime_api.h>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvq::cuda {

/// Maximum rows of inputs prepared at a time.
inline constexpr int32_t kMostLinearRows = 1024;
/// Tile heights that kernels for many rows are compiled for; the last is a multiple of all.
inline constexpr int32_t kTileRowCounts[] = {64, 256};
inline constexpr int32_t kMostTileRows = kTileRowCounts[1];
/// Maximum inputs per row whose Hadamard transform one block computes.
inline constexpr int32_t kMostTransformed = 16384;

/// Inputs as the kernels multiply them: FP16 values times a power of two per row. A row with NaN or infinity is zeros
/// times NaN.
///
/// For few rows: [rows][in], each eight neighbours in the order 0, 4, 1, 5, 2, 6, 3, 7.
///
/// For many rows: swizzled planes for warpgroups, [rows / tile_rows][in / 64][tile_rows][64] in 16-byte chunks permuted
/// by the row's number: chunk 4h + i holds inputs i and i + 4 of each eight of inputs 32h … 32h + 31. Padding rows up
/// to a multiple of tile_rows are zeros.
struct LinearInputs {
  uint16_t* halves;
  float* scales;      // [rows]
  int32_t tile_rows;  // 0: for few rows
};
/// Inputs per plane.
inline constexpr int32_t kPlaneInputs = 64;

/// Rows in the caller's memory.
struct InputRows {
  const void* x;  // [rows][in] of a kvq_dtype
  int32_t dtype;
  int32_t rows;
  int32_t in;
  const uint8_t* signs;  // signs of the rotation; null: not rotated
};

/// Maximum thread blocks that divide the columns of many rows among themselves.
inline constexpr int32_t kMostCluster = 8;
/// Panels per thread block for many rows.
inline constexpr int32_t kManyPanels = 8;

/// Device properties that kernels depend on.
struct LinearDevice {
  int32_t multiprocessors;
  int32_t shared_limit;                // maximum bytes per block
  bool overlaps;                       // kernels can begin before earlier ones have ended
  bool has_warpgroups;                 // has warpgroup products (wgmma)
  int32_t clusters[kMostCluster + 1];  // resident clusters of this many blocks; 0: none
};
/// Fills `clusters` on a device with warpgroups.
void count_clusters(LinearDevice& device);

/// Called once per device.
cudaError_t prepare_linear_inputs();
/// Prepares inputs. \param rotated  [rows][in]; null if no rotated row has more than kMostTransformed inputs.
cudaError_t launch_linear_inputs(const InputRows& rows, float* rotated, const LinearInputs& to,
                                 const LinearDevice& device, cudaStream_t stream);

/// Columns of a matrix with the same code.
struct LinearSegment {
  int32_t first_column;
  int32_t columns;
  int64_t begin;  // offset of its codes in a panel, in bytes
  float unit;
  const int8_t* levels;
  int32_t index_bits;
  uint32_t addend;
};

struct LinearMatrix {
  weights::Scheme scheme;
  int32_t out;
  int32_t in;
  const uint8_t* codes;  // in lane order (code_order.h), [panels][panel_bytes]
  int64_t panel_bytes;
  float scale;
  const uint16_t* row_scales;  // FP16, [out]; null for FP16 weights
  const float* bias;           // [out], or null
  LinearSegment segments[2];
};

/// Copies codes of `panels` panels from file order to lane order, or back. The target must be zeroed. \param
/// file_panel_bytes  bytes of a panel in a file.
cudaError_t launch_to_lanes(const LinearMatrix& matrix, int32_t panels, const uint8_t* file, int64_t file_panel_bytes,
                            uint8_t* lanes, cudaStream_t stream);
cudaError_t launch_from_lanes(const LinearMatrix& matrix, int32_t panels, const uint8_t* lanes, uint8_t* file,
                              int64_t file_panel_bytes, cudaStream_t stream);

/// y = x · Wᵀ + bias, [rows][out] of a kvq_dtype.
struct LinearOutputs {
  void* y;
  int32_t dtype;
};

/// One of several matrices with the same scheme and inputs that a launch multiplies.
struct LinearProduct {
  LinearMatrix matrix;
  LinearOutputs outputs;
};
/// Maximum matrices per launch.
inline constexpr size_t kMostTogether = 4;
using LinearProducts = std::span<const LinearProduct>;

inline int32_t up_to(int32_t n, int32_t each) { return (n + each - 1) / each; }
inline int32_t panels_of(const LinearProduct& product) { return weights::panels_of(product.matrix.out); }
inline size_t code_bytes(const LinearProduct& product) {
  return static_cast<size_t>(panels_of(product)) * static_cast<size_t>(product.matrix.panel_bytes);
}
inline size_t code_bytes(LinearProducts products) {
  size_t bytes = 0;
  for (const LinearProduct& each : products) bytes += code_bytes(each);
  return bytes;
}
/// Thread blocks needed if each has at most `panels` panels.
inline int32_t blocks_for(LinearProducts products, int32_t panels) {
  int32_t blocks = 0;
  for (const LinearProduct& each : products) blocks += up_to(panels_of(each), panels);
  return blocks;
}

/// Called once per scheme.
cudaError_t prepare_linear(const weights::Scheme& scheme, const LinearDevice& device);
cudaError_t prepare_linear_many(const weights::Scheme& scheme, const LinearDevice& device);
/// Whether every thread block has room to prepare the inputs for itself.
bool has_room_for_inputs(const InputRows& rows, const LinearDevice& device);
/// \param inputs  prepared for few rows; null: each thread block prepares them for itself.
cudaError_t launch_linear(LinearProducts products, const InputRows& rows, const LinearInputs* inputs,
                          const LinearDevice& device, cudaStream_t stream);
/// Runs on warpgroups. \param inputs  prepared, in tiles. \param cluster  thread blocks that divide the columns.
cudaError_t launch_linear_many(LinearProducts products, const InputRows& rows, const LinearInputs& inputs,
                               int32_t cluster, cudaStream_t stream);

}  // namespace kvq::cuda
