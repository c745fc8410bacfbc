// Keys in the layout of CPU training: planar vectors of one group.
#pragma once

#include "core/memory.h"
#include "core/parallel.h"
#include "formats/commvq/key_encoder.h"

#include <cstddef>
#include <cstdint>

namespace kvq::keys {

/// Vectors to encode.
struct Tokens {
  float* vectors = nullptr;        // planar, [n][vector_floats(group)]
  const float* weights = nullptr;  // [n] weights of the tokens' errors; null: 1
  int32_t n = 0;
  int32_t group = 0;

  size_t vector() const;
  KeyPairs pairs() const;
  float weight(int32_t token) const { return weights == nullptr ? 1.0F : weights[token]; }
  Tokens part(int32_t first, int32_t end) const;
};

/// Number of work pieces, fixed so that the order of sums does not depend on the number of threads.
inline constexpr int32_t kChunks = 64;
struct Range {
  int32_t first;
  int32_t end;
};
Range chunk(int32_t n, int32_t i);

/// Σ weight · ‖vector‖².
double energy(const Tokens& tokens);

/// Encode the tokens and replace them by their residuals.
///
/// \param indices  [n][stages]{a, b}
void subtract_codes(Allocator& allocator, Parallel& parallel, const KeyEncoder& encoder, int32_t beam,
                    const Tokens& tokens, Vector<uint8_t>& indices);

}  // namespace kvq::keys
