// Alternating rounds of a code for unit vectors: bits from the code, then the code from the bits.
#pragma once

#include "backend/value_sample.h"
#include "core/memory.h"
#include "formats/commvq/value_code.h"

#include <cstddef>
#include <span>

namespace kvq {

/// Solve (A + λ·I)·X = B + λ·X₀ in place, where λ is `ridge` times the mean of A's diagonal: X stays near X₀ in
/// directions that the data determines poorly. `a` is [n][n], symmetric, only its lower triangle is read; it is
/// overwritten. `solution` holds B, then X: [n][columns]; `prior` X₀, or nothing for 0.
void solve_ridge(Vector<double>& a, double ridge, const float* prior, size_t columns, Vector<double>& solution);

/// Replace symmetric `a` [n][n] (lower triangle) by its orthonormal directions, one per row, by falling variance;
/// returns the variances.
Vector<double> principal_directions(Vector<double>& a, size_t n);

/// Distance of the two levels for the signs of a normal distribution, in standard deviations: 2·√(2/π).
inline constexpr double kSignStep = 1.5957691216057308;

/// Draft of a code of unit vectors: its channel_scale is 1.
struct ValueDraft {
  ValueDraft(Allocator& allocator, size_t width, size_t bits);

  size_t width() const { return offset.size(); }
  size_t bits() const { return proposal_bias.size(); }
  ValueCode code() const;

  Vector<float> channel_scale;
  Vector<float> codes;
  Vector<float> offset;
  Vector<float> proposal;
  Vector<float> proposal_bias;
};

struct AlternationOptions {
  double ridge;           // of the codes, towards those of the round before
  double proposal_ridge;  // of the proposal, towards zero; both relative to the mean of the diagonal
};

/// Alternating least squares of one draft.
class ValueAlternation {
 public:
  ValueAlternation(Allocator& allocator, const AlternationOptions& options, ValueSample& targets, ValueDraft& draft);

  /// Set the draft, which must have as many bits as channels, to signs along the principal directions of the targets.
  void start_from_signs();

  /// Find the bits of all targets and return the mean squared error of the held-out ones.
  double encode() { return targets_.encode(draft_.code()); }

  /// Solve for codes and offset, given the bits.
  void solve_codes();

  /// Solve for the proposal of a draft that started from signs, given the bits.
  void solve_proposal();

 private:
  Allocator& allocator_;
  AlternationOptions options_;
  ValueSample& targets_;
  ValueDraft& draft_;
  Vector<double> moments_;  // of the targets, once started from signs
};

}  // namespace kvq
