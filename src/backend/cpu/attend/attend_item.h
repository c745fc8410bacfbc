#pragma once

#include "backend/cpu/attend/attend.h"
#include "backend/cpu/dispatch/kernels.h"

#include <limits>

namespace kvq::cpu {

inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

/// Position of one row's partial result, in floats: {maximum, sum}, padding, then outputs.
struct PartialLayout {
  PartialLayout(const AttendBatch& batch, const KernelTable& kernels)
      : width(static_cast<size_t>(padded_dim(batch.head.values))),
        rotated(batch.any_hadamard_values),
        sums(kernels.codec(batch.context) != nullptr ? kernels.codec(batch.context)->sum_floats(*batch.context) : 0) {}

  size_t width;
  bool rotated;
  size_t sums;  // floats of sums in a row

  static constexpr size_t kState = 16;  // keeps outputs aligned
  /// Rows are laid out as [rows] states, [rows, width] plain outputs, [rows, width] rotated outputs, [rows, sums].
  size_t item_floats(int32_t rows) const {
    return static_cast<size_t>(padded_rows(rows)) * (kState + (rotated ? 2 : 1) * width + sums);
  }
  static constexpr int32_t padded_rows(int32_t rows) { return (rows + kBlockRows - 1) / kBlockRows * kBlockRows; }

  SoftmaxState* states(float* partial) const { return reinterpret_cast<SoftmaxState*>(partial); }
  float* plain_output(float* partial, int32_t rows) const {
    return partial + static_cast<size_t>(padded_rows(rows)) * kState;
  }
  float* rotated_output(float* partial, int32_t rows) const {
    return plain_output(partial, rows) + static_cast<size_t>(padded_rows(rows)) * width;
  }
  float* sums_of(float* partial, int32_t rows) const {
    return plain_output(partial, rows) + static_cast<size_t>(padded_rows(rows)) * (rotated ? 2 : 1) * width;
  }
};

/// Rows of a work item, of the channels that meet one side of pages.
struct ItemRows {
  const float* plain;      // [row_count, dim]
  const float* rotated;    // `plain` after a Hadamard rotation, or null
  const int32_t* rounded;  // `rotated` as RoundedQueries, or null
  int32_t dim;
};

/// Rows of a work item and their positions.
struct ItemQueries {
  ItemRows keys;
  ItemRows latent;           // that meet the value side, if values are the first channels of the keys
  const float* biases;       // [row_count] added to scores of latents
  const int32_t* positions;  // positions of the sequence's query tokens
  int32_t first_row;         // row i has the position of query token (first_row + i) / group
  int32_t group;
};

/// `work` of an item, without pages that need their layer's context.
size_t latent_work_bytes(const HeadShape& head);

/// Attention of an item's rows over its pages, written to its partial. work: bytes required by the plan of its path.
void run_item(const AttendBatch& batch, const AttendItem& item, const ItemQueries& queries, const KernelTable& kernels,
              float* partial, std::byte* work);

/// Computes only the states of the partial, without values.
void measure_item(const AttendBatch& batch, const AttendItem& item, const ItemQueries& queries,
                  const KernelTable& kernels, float* partial, std::byte* work);

/// Attention that each slot of a head's list receives from the queries.
struct SlotWeights {
  Pooling group;   // pooling over the query heads of a KV head
  float* mass;     // [slots]
  float* largest;  // [slots], zeros before and after; only for Pooling::kMax
};

/// Add the softmax weights of an item whose partial has the states of whole rows. Items of a head follow each other.
void weigh_item(const AttendBatch& batch, const AttendItem& item, const ItemQueries& queries,
                const KernelTable& kernels, float* partial, std::byte* work, const SlotWeights& weights);

}  // namespace kvq::cpu
