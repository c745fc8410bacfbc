#pragma once

#include "core/rope.h"
#include "formats/codec.h"
#include "formats/gain_shape/centre_search.h"

#include <cstddef>
#include <cstdint>

namespace kvq::cpu {

/// One head's rows among the tokens of an append.
struct HeadRows {
  const std::byte* first;  // needs no alignment
  const std::byte* later;  // first of the rows that will be read next, which are prefetched
  size_t stride;           // bytes from one token's row to the next
  size_t later_stride;     // the same of those that will be read next
  kvq_dtype dtype;
  int32_t count;
  int32_t head_dim;
};

/// No number up to this becomes too large for FP16: rotations keep the norm of a head, which is at most 16 times it.
inline constexpr float kCertainlyFits = 2048.0F;
static_assert(kMaxHeadDim <= 16 * 16);

/// Rows of a Rope table as products e^{i·base·θ} · e^{i·offset·θ}: arguments are `[2][pairs]`, cosines before sines.
/// False if that is not accurate enough to tell what cos and sin in double round to; the row is to be filled otherwise.
using TurnKernel = bool (*)(const double* base, const double* offset, int32_t pairs, float* row);

/// Rotate rows, a table row each from `angles`, and store them as slots from `slot` of an FP16 plane of keys.
/// Returns whether all scalars are at most kCertainlyFits in size; if not, some may not be what FP16 can hold.
using StoreKeysKernel = bool (*)(const HeadRows& rows, const Rope& rope, const float* angles, int32_t slot,
                                 uint16_t* plane);

/// Store rows as slots from `slot` of an FP16 plane of values. Returns the same.
using StoreValuesKernel = bool (*)(const HeadRows& rows, int32_t slot, uint16_t* plane);

/// Encode one side from its FP16 plane, of which the first `used` slots count and the others are zeros; every byte of
/// the side is written. `room`: bytes as SideKernels says; hosts' threads may have small stacks.
using EncodeKernel = void (*)(Side side, const SideFormat& format, int32_t head_dim, const std::byte* float16,
                              int32_t used, std::byte* out, std::byte* room);
using RoomKernel = size_t (*)(int32_t head_dim);


/// The nearest centres of up to 32 vectors, as CentreSearch::nearest() finds them.
/// words: [quads][32] of CentreSearch::round(); units: [32] what it returns.
using NearestKernel = void (*)(const centred::CentreSearch& search, const float* biases, const uint32_t* words,
                               const float* units, int32_t used, uint8_t* indices);

/// Encode one side of a page around trained centres; its bytes are zeros. `room`: CentreKernels::room_bytes().
using EncodeCentredKernel = void (*)(const SideToEncode& side, NearestKernel nearest, std::byte* room);

/// What an instruction set provides for appending. All of them give the same bytes: each scalar goes through the same
/// operations in the same order, and none is fused with another.
struct AppendKernels {
  TurnKernel turn;
  StoreKeysKernel store_keys;
  StoreValuesKernel store_values;
};

/// An EncodeKernel for FP16, whatever the instruction set.
void copy_float16(Side side, const SideFormat& format, int32_t head_dim, const std::byte* float16, int32_t used,
                  std::byte* out, std::byte* room);

}  // namespace kvq::cpu
