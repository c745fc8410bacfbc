// Cheapest path through the bit-shift trellis of a tile, for each instruction set.
#pragma once

#include "core/memory.h"
#include "weights/codebook.h"
#include "weights/scheme.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvq::weights {

/// Levels of the states of a trellis, for rows of unit variance.
struct StateLevels {
  StateLevels(Allocator& allocator, const Codebook& codebook);

  std::array<Vector<float>, 2> levels;  // [dims][kStates]; the second is empty for steps of one weight
};

/// All kernels round every product and sum on its own and in the same order, so that they find the same codes.
struct TrellisKernels {
  const char* name;
  /// Costs of the groups of states that share all but their newest `down` bits, from those of the step after them:
  /// out[g] = min over n of next[x >> up] + Σ_d (target[d] − levels[d][x])² where x = g + n·2^(16 − down).
  void (*step)(const StateLevels& levels, const float* target, const float* next, int32_t up, int32_t down, float* out);
};

/// Kernels that this processor can run, best first; the last one runs everywhere.
std::span<const TrellisKernels* const> trellis_kernels();

/// Work space of a search in this code, in floats.
size_t search_floats(const Code& code);

/// The tail-biting stream of bits whose states come close to `targets`, [dims][steps]. Two passes: the first one begins
/// in the middle, is free at both ends, and finds the state at the seam, where the stream's end meets its start; the
/// second one starts and ends in that state. (A first pass over half of the steps around the seam costs 0.4 % more
/// error at 2 bits.) `work`: search_floats(code); `stream`: code.tile_bytes(). Returns the squared error.
float search_trellis(const Code& code, const StateLevels& levels, const TrellisKernels& kernels,
                     std::span<const float> targets, std::span<float> work, std::span<uint8_t> stream) noexcept;

}  // namespace kvq::weights
