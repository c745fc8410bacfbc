// Products with packed matrices. Codes become halves by tables in shared memory as they are read, and are multiplied on
// tensor cores by inputs that were rotated and are halves, too.
#pragma once

#include "core/host_device.h"
#include "weights/scheme.h"

#include <cuda_runtime_api.h>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvq::cuda {

/// Rows of inputs that are made ready at a time.
inline constexpr int32_t kMostLinearRows = 1024;
/// Rows of a tile of inputs where there are many rows, of which kernels are compiled; the last is a multiple of all.
inline constexpr int32_t kTileRowCounts[] = {64, 256};
inline constexpr int32_t kMostTileRows = kTileRowCounts[1];
/// Inputs of a row whose Hadamard transform a block does by itself, at most.
inline constexpr int32_t kMostTransformed = 16384;

/// Inputs as matrices are multiplied by: halves times a power of two of their row. A row that has NaN or infinity is
/// zeros times NaN.
///
/// For few rows: [rows][in], of each eight neighbours in the order 0, 4, 1, 5, 2, 6, 3, 7.
///
/// For many: planes as warpgroups multiply by them, [rows / tile_rows][in / 64][tile_rows][64], whose 16-byte chunks
/// trade places by the row's number: chunk 4h + i has of inputs 32h … 32h + 31 those with numbers i and i + 4 of each
/// eight. Rows up to a multiple of tile_rows are zeros.
struct LinearInputs {
  uint16_t* halves;
  float* scales;      // [rows]
  int32_t tile_rows;  // 0: for few rows
};
/// Inputs of a plane.
inline constexpr int32_t kPlaneInputs = 64;

/// Rows as the caller has them.
struct InputRows {
  const void* x;  // [rows][in] of a kvq_dtype
  int32_t dtype;
  int32_t rows;
  int32_t in;
  const uint8_t* signs;  // of the rotation; null: not rotated
};

/// Blocks of threads that divide the columns of many rows among themselves, at most.
inline constexpr int32_t kMostCluster = 8;
/// Panels of such a block of threads.
inline constexpr int32_t kManyPanels = 8;

/// What a device has.
struct LinearDevice {
  int32_t multiprocessors;
  int32_t shared_limit;                // bytes of a block
  bool overlaps;                       // kernels begin before earlier ones have ended
  bool has_warpgroups;                 // that multiply
  int32_t clusters[kMostCluster + 1];  // of so many blocks, that run at once; 0: there are none
};
/// Of a device that has warpgroups.
void count_clusters(LinearDevice& device);

/// Once.
cudaError_t prepare_linear_inputs();
/// Makes inputs ready. \param rotated  [rows][in]; null where no row of more than kMostTransformed is rotated.
cudaError_t launch_linear_inputs(const InputRows& rows, float* rotated, const LinearInputs& to,
                                 const LinearDevice& device, cudaStream_t stream);

/// Columns of a matrix that are written in the same code.
struct LinearSegment {
  int32_t first_column;
  int32_t columns;
  int64_t begin;  // of its codes in a panel, in bytes
  float unit;
  const int8_t* levels;
  int32_t index_bits;
  uint32_t addend;
};

struct LinearMatrix {
  weights::Scheme scheme;
  int32_t out;
  int32_t in;
  const uint8_t* codes;  // in the order of lanes (lane_order.h), [panels][panel_bytes]
  int64_t panel_bytes;
  float scale;
  const uint16_t* row_scales;  // halves, [out]; null in FP16
  const float* bias;           // [out], or null
  LinearSegment segments[2];
};

/// Copies codes of `panels` panels from the order of files to that of lanes, or back. What they are copied to is zeros
/// before. \param file_panel_bytes  of a panel in a file.
cudaError_t launch_to_lanes(const LinearMatrix& matrix, int32_t panels, const uint8_t* file, int64_t file_panel_bytes,
                            uint8_t* lanes, cudaStream_t stream);
cudaError_t launch_from_lanes(const LinearMatrix& matrix, int32_t panels, const uint8_t* lanes, uint8_t* file,
                              int64_t file_panel_bytes, cudaStream_t stream);

/// y = x · Wᵀ + bias, [rows][out] of a kvq_dtype.
struct LinearOutputs {
  void* y;
  int32_t dtype;
};

/// One of the matrices that are multiplied together: of the same scheme and inputs.
struct LinearProduct {
  LinearMatrix matrix;
  LinearOutputs outputs;
};
/// Those of one launch, at most.
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
/// Blocks of threads, if none has more than so many panels.
inline int32_t blocks_for(LinearProducts products, int32_t panels) {
  int32_t blocks = 0;
  for (const LinearProduct& each : products) blocks += up_to(panels_of(each), panels);
  return blocks;
}

/// Once for each scheme.
cudaError_t prepare_linear(const weights::Scheme& scheme, const LinearDevice& device);
cudaError_t prepare_linear_many(const weights::Scheme& scheme, const LinearDevice& device);
/// Whether blocks of threads have room to make inputs ready, each for itself.
bool has_room_for_inputs(const InputRows& rows, const LinearDevice& device);
/// \param inputs  ready, for few rows; null: each block of threads makes them ready for itself.
cudaError_t launch_linear(LinearProducts products, const InputRows& rows, const LinearInputs* inputs,
                          const LinearDevice& device, cudaStream_t stream);
/// On warpgroups. \param inputs  ready, in tiles. \param cluster  blocks of threads that divide columns.
cudaError_t launch_linear_many(LinearProducts products, const InputRows& rows, const LinearInputs& inputs,
                               int32_t cluster, cudaStream_t stream);

}  // namespace kvq::cuda
