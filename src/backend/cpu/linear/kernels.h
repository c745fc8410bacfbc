#pragma once

#include "kvq.h"
#include "weights/codebook.h"
#include "weights/matrix.h"

#include <cstddef>
#include <cstdint>

namespace kvq::cpu {

/// Rows of activations that kernels multiply together, by lane.
inline constexpr int32_t kGroupRows = 8;
/// Panels that kernels may read side by side: several streams get more memory bandwidth than one.
inline constexpr int32_t kLinearPanels = 4;

/// Adjacent quads of a row.
inline constexpr int32_t kQuadsTogether = weights::kInputMultiple / 4;

/// Inputs of a block that sums of integers cover. Matrices with two codes per row need sums by half-block.
enum class Half : int32_t { kLower, kUpper, kBoth };
inline constexpr size_t kHalves = 3;

constexpr int32_t activation_blocks(int32_t in) {
  return (in + weights::kActivationBlock - 1) / weights::kActivationBlock;
}

/// Up to kGroupRows rows of activations, rotated and rounded: x = scale · integer, one scale per block of
/// kActivationBlock, NaN if the block holds a value that is not finite.
struct ActivationGroup {
  int32_t rows;
  int32_t in;
  std::byte* quads;  // [in / 64, rows, 16]: int8 of four inputs
  float* scales;     // [blocks, rows]
  int32_t* sums;     // [kHalves, blocks, rows], sums of integers

  /// Index of the quad that begins with an input of a row.
  size_t quad_at(int32_t input, int32_t row) const {
    return static_cast<size_t>((input / weights::kInputMultiple * rows + row) * kQuadsTogether +
                               input % weights::kInputMultiple / 4);
  }
  size_t block_numbers() const { return static_cast<size_t>(activation_blocks(in)) * static_cast<size_t>(rows); }
};

/// Up to kGroupRows rows of unrounded activations, [in, rows].
struct FloatGroup {
  int32_t rows;
  int32_t in;
  float* x;
};

/// One row of a caller's tensor, which needs no alignment.
struct ActivationRow {
  const std::byte* x;
  kvq_dtype dtype;
  int32_t in;
};

/// Rotate a row, round it and place it in a group. `work`: [in], aligned. Gives the same integers on every instruction
/// set.
using RoundKernel = void (*)(const ActivationRow& row, const uint8_t* signs, float* work, const ActivationGroup& group,
                             int32_t index);

/// Place a row in a group.
using WidenKernel = void (*)(const ActivationRow& row, const FloatGroup& group, int32_t index);

struct LinearSegment;

/// Products with the decoded levels of one panel between two columns of a block, [columns / 4, rows of the panel, 4];
/// for kernels that decode before they multiply by many rows.
struct DecodedProducts {
  int32_t least_rows;           // minimum for this to beat products while decoding
  void (*begin)(int32_t rows);  // argument: rows of the first group
  void (*multiply)(const uint8_t* levels, const LinearSegment& segment, int32_t column, int32_t stop,
                   const ActivationGroup* groups, int32_t count, float* sums);
  void (*end)();
};

/// The columns of some panels that share one code.
struct LinearSegment {
  const weights::Codebook& codebook;
  int32_t first_column;
  int32_t columns;
  Half half;
  const uint8_t* codes;  // first panel's codes
  size_t stride;         // bytes from one panel to the next
  int32_t panels;        // up to kLinearPanels
  const DecodedProducts& products;
};

/// sums[panel][row][r] += Σ over blocks of (Σ level · integer) · (scale · unit), blocks in order and nothing fused, so
/// that every instruction set and group size gives the same result. sums: [panels, rows of all groups, kTileRows].
using LinearKernel = void (*)(const LinearSegment& segment, const ActivationGroup* groups, int32_t count, float* sums);

/// sums[panel][row][r] = Σ weight · x in FP32, columns in order, fused where the instruction set can.
using Float16LinearKernel = void (*)(const uint16_t* panels, size_t stride, int32_t count, const FloatGroup* groups,
                                     int32_t group_count, float* sums);

/// Scaling, bias and destination of a panel's sums.
struct LinearOutput {
  float scale;
  const uint16_t* row_scales;  // FP16, [rows], or null: sums are stored unscaled
  const float* bias;           // [rows] or null
  int32_t rows;                // rows in the panel, up to kTileRows
  std::byte* y;
  kvq_dtype dtype;
  size_t stride;  // bytes from one row of activations to the next
};

/// y[n][r] = sums[n][r] · (scale · row_scales[r]) + bias[r]. sums: [n, kTileRows].
using StoreLinearKernel = void (*)(const float* sums, int32_t n, const LinearOutput& output);

/// An instruction set's kernels for packed matrices.
struct LinearKernels {
  RoundKernel round;
  WidenKernel widen;
  Float16LinearKernel float16;
  StoreLinearKernel store;
  DecodedProducts products;    // if decoding first pays
  LinearKernel packed[4][33];  // by family and quarters of a bit; null where no such code exists

  LinearKernel kernel(const weights::Code& code) const {
    return packed[static_cast<size_t>(code.family)][static_cast<size_t>(code.quarters)];
  }
};

}  // namespace kvq::cpu
