// Encodes value vectors: a guess of the code, linear or of a network, then bit flips for as long as they bring it
// closer.
#pragma once

#include "core/memory.h"
#include "core/parallel.h"
#include "formats/commvq/coding_effort.h"
#include "formats/commvq/value_code.h"
#include "formats/commvq/value_kernels.h"

#include <cstddef>
#include <cstdint>

namespace kvq {

/// What a token's scale makes of its code w and the vector x that it stands for.
enum class ValueScale : uint8_t {
  kLeastError,  // |scale · w − x| as small as it can be: shorter than x, what training solves for
  kUnbiased,  // ⟨scale · w, x⟩ = ⟨x, x⟩, unless that would be more than twice the scale of least error: for pages
};

/// A code is found in stages of `width` bits, or with a network, which knows of no residuals, in a single one. The
/// first guesses its bits from the unit vector of v / channel_scale, a later one from the unit vector of what the
/// stages before it left; bits that are still to come count as a half. Every stage then flips bits, its own and all
/// before, one at a time and each time the one that lowers the error most, with the best token scale for each code on
/// the way.
///
/// Results do not depend on threads, on the instruction set or on which vectors are encoded together. Constant calls
/// may run concurrently.
class ValueEncoder {
 public:
  /// `code` names arrays that must outlive the encoder, which adds the Gram matrix of its rows: bits² floats.
  ValueEncoder(Allocator& allocator, Parallel& parallel, const ValueCode& code,
               const ValueKernels& kernels = *value_kernels().front());

  size_t words() const { return code_.words(); }
  size_t workspace_floats() const;

  /// Encode `n` ≤ kValueBlock finite vectors, `stride` floats apart, into `codes` [n][words()] and FP16 `scales` [n].
  /// A vector of zeros gets code 0 and scale 0. `max_flips` limits each stage. Returns the number of flips.
  int64_t encode_block(const float* vectors, size_t stride, size_t n, int32_t max_flips, ValueScale scale,
                       float* workspace, uint32_t* codes, uint16_t* scales) const noexcept;

  /// Any number of vectors with scales of least error, on all threads.
  int64_t encode(Allocator& allocator, Parallel& parallel, const float* vectors, size_t stride, size_t n,
                 uint32_t* codes, uint16_t* scales, int32_t max_flips = kFlipsUnlimited) const;

  size_t stages() const { return stages_; }
  /// Of the decoder while only the bits of the stages up to `stage` are known: [width].
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
