// Encodes value vectors: a guess of the code, linear or by a network, then bit flips for as long as they reduce the
// error.
#pragma once

#include "core/memory.h"
#include "core/parallel.h"
#include "formats/commvq/options.h"
#include "formats/commvq/value_code.h"
#include "formats/commvq/value_kernels.h"

#include <cstddef>
#include <cstdint>

namespace kvq {

/// Choice of a token's scale, given its code w and its vector x.
enum class ValueScale : uint8_t {
  kLeastError,  // least |scale · w − x|: shorter than x; training solves for it
  kUnbiased,    // ⟨scale · w, x⟩ = ⟨x, x⟩, unless that exceeds twice the scale of least error: for pages
};

/// Encodes in stages of `width` bits, or in a single one with a network, which does not know residuals. The first stage
/// guesses its bits from the unit vector of v / channel_scale, a later one from the unit vector of the residual; bits
/// of later stages count as a half. Every stage then flips bits, its own and all before, one at a time: always the one
/// that lowers the error most, with the best token scale for each code tried.
///
/// Results do not depend on threads, on the instruction set or on vectors encoded together. Constant calls may run
/// concurrently.
class ValueEncoder {
 public:
  /// `code` refers to arrays that must outlive the encoder, which adds the Gram matrix of its rows: bits² floats.
  ValueEncoder(Allocator& allocator, Parallel& parallel, const ValueCode& code,
               const ValueKernels& kernels = *value_kernels().front());

  size_t words() const { return code_.words(); }
  size_t workspace_floats() const;

  /// Encode `n` ≤ kValueBlock finite vectors, `stride` floats apart, into `codes` [n][words()] and FP16 `scales` [n]. A
  /// vector of zeros gets code 0 and scale 0. `max_flips` limits each stage. Returns the number of flips.
  int64_t encode_block(const float* vectors, size_t stride, size_t n, int32_t max_flips, ValueScale scale,
                       float* workspace, uint32_t* codes, uint16_t* scales) const noexcept;

  /// Encode any number of vectors with scales of least error, on all threads.
  int64_t encode(Allocator& allocator, Parallel& parallel, const float* vectors, size_t stride, size_t n,
                 uint32_t* codes, uint16_t* scales, int32_t max_flips = kFlipsUnlimited) const;

  size_t stages() const { return stages_; }
  /// Offset of the decoder while only the bits of the stages up to `stage` are known: [width].
  const float* offset(size_t stage) const { return offsets_.data() + stage * static_cast<size_t>(code_.width); }

 private:
  struct Workspace;
  struct Search;

  size_t stage_end(size_t stage) const;
  void fill_gram(Allocator& allocator, Parallel& parallel);
  void fill_offsets();
  double load_unit(const float* vector, float* column) const noexcept;
  void guess(size_t stage, const Workspace& workspace) const noexcept;
  Search start_search(size_t stage, const Workspace& workspace, size_t column) const noexcept;
  int64_t flip(Search& search, int32_t max_flips) const noexcept;
  void subtract_decoded(size_t stage, const Workspace& workspace, const float* scales) const noexcept;

  ValueCode code_;
  const ValueKernels& kernels_;
  size_t stages_;
  size_t padded_bits_;
  Vector<float> gram_;             // C·Cᵀ: [bits][padded_bits]
  Vector<float> half_norm_;        // |c|² / 2 of the rows c of C: [padded_bits]
  Vector<float> offsets_;          // [stages][width]
  Vector<float> offset_products_;  // C·offset: [stages][bits]
  Vector<double> offset_norms_;    // |offset|²: [stages]
};

}  // namespace kvq
