// An instruction set's attention kernels.
#pragma once

#include "backend/cpu/attend/rounded_queries.h"
#include "backend/cpu/vectors.h"
#include "core/limits.h"
#include "formats/page_fields.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace kvq::cpu {

/// Pages scored before their values are read: enough to amortise the softmax, few enough to keep scores in L1.
inline constexpr int32_t kTilePages = 8;
inline constexpr int32_t kTileSlots = kTilePages * kPageSlots;
/// Added to rounded weights of values before truncation, between 0 and 1: spread evenly over the tokens of a page, so
/// that many small weights are not all lost beside a large one.
alignas(64) inline constexpr std::array<float, kPageSlots> kDither = {
    0.015625F, 0.515625F, 0.265625F, 0.765625F, 0.140625F, 0.640625F, 0.390625F, 0.890625F,
    0.078125F, 0.578125F, 0.328125F, 0.828125F, 0.203125F, 0.703125F, 0.453125F, 0.953125F,
    0.046875F, 0.546875F, 0.296875F, 0.796875F, 0.171875F, 0.671875F, 0.421875F, 0.921875F,
    0.109375F, 0.609375F, 0.359375F, 0.859375F, 0.234375F, 0.734375F, 0.484375F, 0.984375F};
/// Query rows that share one pass over a page. Kernels exist for 1, 2 and 4; 3 runs as 4 with a row of padding.
inline constexpr int32_t kBlockRows = 4;

/// Shape parameters of one page side, as kernels need them.
struct SideShape {
  int32_t head_dim;
  int32_t group;   // channels per scale of an integer value page
  bool page_mean;  // gain–shape keys are relative to the mean of their page

  /// For codes of a width known to kernels.
  constexpr SideLayout layout(Side side, CodeType code) const {
    return {.side = side,
            .code = code,
            .head_dim = head_dim,
            .group = group,
            .centre = page_mean ? Centre::kPageMean : Centre::kNone};
  }
};

/// One side of a page, and of the page read one tile later: kernels prefetch it line by line, because pages may lie
/// anywhere and hardware prefetchers stop at the end of each.
struct SideData {
  const std::byte* data;
  const std::byte* later;
};

/// A block of query rows in every representation that pages need.
struct QueryRows {
  const float* floats;     // [rows, head_dim], rotated if the keys are
  RoundedQueries rounded;  // rounded rows for gain–shape pages, null for others
};

/// scores[r][t] = q[r] · key[t] for the slots of consecutive pages of a tile.
/// keys: [pages], scores: [rows, kTileSlots] from the first page's first slot.
using KeyKernel = void (*)(const SideShape& shape, const SideData* keys, int32_t pages, int32_t rows,
                           const QueryRows& q, float* scores);

/// out[r] += Σ_t p[r][t] · value[t] over the slots of consecutive pages of a tile.
/// values: [pages], p: [rows, kTileSlots] from the first page's first slot, out: [rows, padded_dim(head_dim)].
using ValueKernel = void (*)(const SideShape& shape, const SideData* values, int32_t pages, int32_t rows,
                             const float* p, float* out);

/// Writes a value side as a key side, for values that are the first channels of the keys. Keys hold the numbers of the
/// values, rotated if these are; `room`: a plane of FP16 values.
using AsKeysKernel = void (*)(const SideShape& shape, const std::byte* values, std::byte* keys, std::byte* room);

/// Running state of one row's softmax, in base-2 logarithms.
struct SoftmaxState {
  float maximum;  // −infinity initially
  float sum;
};

/// Replace n scores (base-2 logits, −infinity where masked) by unnormalised probabilities relative to the new maximum.
/// Returns the factor for earlier sums.
using SoftmaxKernel = float (*)(float* scores, int32_t n, float softcap, SoftmaxState* state);

/// out[i] = a · out[i] + b · x[i]
using BlendKernel = void (*)(float* out, float a, const float* x, float b, int32_t n);

/// Kernels that do not depend on the format of pages.
struct AttendKernels {
  SoftmaxKernel softmax;
  BlendKernel blend;
};

}  // namespace kvq::cpu
