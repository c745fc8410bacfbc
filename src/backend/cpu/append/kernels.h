#pragma once

#include "core/float16.h"
#include "core/rope.h"
#include "formats/codec.h"
#include "formats/gain_shape/centre_search.h"
#include "formats/layer_scales.h"

#include <cstddef>
#include <cstdint>

namespace kvq::cpu {

/// No value up to this overflows FP16: rotations keep the norm of a head, which is at most 24 times the value.
inline constexpr float kCertainlyFits = 1024.0F;
static_assert(kMaxHeadDim <= 24 * 24);
// Scales are at most 1.
static_assert(24 * (kCertainlyFits + kMaxValueOffset) <= kMaxFloat16);

/// One head's rows among the tokens of an append.
struct HeadRows {
  const std::byte* first;  // needs no alignment
  const std::byte* later;  // first row to prefetch: read after these
  size_t stride;           // bytes from one token's row to the next
  size_t later_stride;     // stride of the later rows
  kvq_dtype dtype;
  int32_t count;
  int32_t head_dim;
  const float* offsets = nullptr;  // [head_dim] subtracted before scaling; null: none
  const float* factors = nullptr;  // [head_dim] scales; null: none
  bool rounds_first = false;       // to FP16, before offsets and scales
};

/// Rows of a Rope table as products e^{i·base·θ} · e^{i·offset·θ}; arguments are `[2][pairs]`, cosines before sines.
/// Returns false if precision does not suffice to round as cos and sin in double would; the caller then computes the
/// row.
using RotationKernel = bool (*)(const double* base, const double* offset, int32_t pairs, float* row);

/// Rotate rows, each by its row of `angles`, scale them, and store them as slots from `slot` of an FP16 plane of keys.
/// Returns whether all magnitudes are at most kCertainlyFits; if not, some may overflow FP16.
using StoreKeysKernel = bool (*)(const HeadRows& rows, const Rope& rope, const float* angles, int32_t slot,
                                 uint16_t* plane);

/// Scale rows and store them as slots from `slot` of an FP16 plane of values; returns as StoreKeysKernel does.
using StoreValuesKernel = bool (*)(const HeadRows& rows, int32_t slot, uint16_t* plane);

/// Encode one side from its FP16 plane, in which only the first `used` slots are nonzero; writes every byte of the
/// side. `room`: SideKernels::room_bytes(), because host threads may have small stacks.
using EncodeKernel = void (*)(Side side, const SideFormat& format, int32_t head_dim, const std::byte* float16,
                              int32_t used, std::byte* out, std::byte* room);
using RoomKernel = size_t (*)(int32_t head_dim);

/// Nearest centres of up to 32 vectors, equal to CentreSearch::nearest().
/// words: [quads][32] from CentreSearch::round(); units: [32] its return values.
using NearestKernel = void (*)(const centred::CentreSearch& search, const float* biases, const uint32_t* words,
                               const float* units, int32_t used, uint8_t* indices);

/// Encode one side of a page around trained centres; it holds zeros. `room`: CentreKernels::room_bytes().
using EncodeCentredKernel = void (*)(const SideToEncode& side, NearestKernel nearest, std::byte* room);

/// An instruction set's kernels of append. All give the same bytes: each value passes the same operations in the same
/// order, and none is fused.
struct AppendKernels {
  RotationKernel fill_rotation;
  StoreKeysKernel store_keys;
  StoreValuesKernel store_values;
};

/// EncodeKernel for FP16 on every instruction set.
void copy_float16(Side side, const SideFormat& format, int32_t head_dim, const std::byte* float16, int32_t used,
                  std::byte* out, std::byte* room);

}  // namespace kvq::cpu
