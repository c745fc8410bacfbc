// What an instruction set provides for attending to pages.
#pragma once

#include "backend/cpu/vectors.h"
#include "core/limits.h"

#include <cstddef>
#include <cstdint>

namespace kvq::cpu {

/// Pages whose scores are formed before their values are read: long enough to amortise the softmax, short enough that
/// scores stay in the first-level cache.
inline constexpr int32_t kTilePages = 8;
inline constexpr int32_t kTileSlots = kTilePages * kPageSlots;
/// Query rows that share one pass over a page. Kernels exist for 1, 2 and 4; 3 runs as 4 with a row of padding.
inline constexpr int32_t kBlockRows = 4;

/// What kernels need to know about one side of a page.
struct SideShape {
  int32_t head_dim;
  int32_t group;   // channels per scale of an integer value page
  bool page_mean;  // gain–shape keys are relative to the mean of their page
};

/// One side of a page, and of the page that will be read a tile later: kernels prefetch it line by line, since pages
/// lie anywhere and the processor's own prefetchers stop at the end of each.
struct SideData {
  const std::byte* data;
  const std::byte* later;
};

/// scores[r][t] = q[r] · key[t] for the 32 slots of a page.
/// q: [rows, head_dim], scores: [rows, kTileSlots] from the page's first slot.
using KeyKernel = void (*)(const SideShape& shape, const SideData& keys, int32_t rows, const float* q, float* scores);

/// out[r] += Σ_t p[r][t] · value[t] over the slots of consecutive pages of a tile.
/// values: [pages], p: [rows, kTileSlots] from the first page's first slot, out: [rows, padded_dim(head_dim)].
using ValueKernel = void (*)(const SideShape& shape, const SideData* values, int32_t pages, int32_t rows,
                             const float* p, float* out);

/// Running state of one row's softmax, in base-2 logarithms.
struct SoftmaxState {
  float maximum;  // −infinity before anything was seen
  float sum;
};

/// Turn n scores (base-2 logits, −infinity where masked) into unnormalised probabilities relative to the new maximum.
/// Returns the factor for what was accumulated before.
using SoftmaxKernel = float (*)(float* scores, int32_t n, float softcap, SoftmaxState* state);

/// out[i] = a · out[i] + b · x[i]
using BlendKernel = void (*)(float* out, float a, const float* x, float b, int32_t n);

/// Kernels of one kind of page.
struct PageKernels {
  KeyKernel keys;
  ValueKernel values;
};

struct AttendKernels {
  PageKernels float16;
  PageKernels int8;
  PageKernels int4;
  PageKernels int3;
  PageKernels int2;
  SoftmaxKernel softmax;
  BlendKernel blend;
};

}  // namespace kvq::cpu
