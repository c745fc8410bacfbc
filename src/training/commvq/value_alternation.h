// One round after the other of a code for unit vectors: bits from the code, then the code from the bits.
#pragma once

#include "core/memory.h"
#include "core/parallel.h"
#include "formats/commvq/value_code.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvq {

/// Distance of the two numbers that stand for the signs of a normal distribution, in standard deviations: 2·√(2/π).
inline constexpr double kSignStep = 1.5957691216057308;

/// A code in the making, of unit vectors: its channel_scale is 1.
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

/// Unit vectors [tokens][width], of which the last `held_out` only judge.
struct UnitVectors {
  Vector<float> numbers;
  size_t width;
  size_t held_out;

  size_t tokens() const { return numbers.size() / width; }
  size_t training() const { return tokens() - held_out; }
  const float* row(size_t token) const { return numbers.data() + token * width; }
};

struct AlternationOptions {
  double ridge;           // of the codes, towards those of the round before
  double proposal_ridge;  // of the proposal, towards zero; both relative to the mean of the diagonal
};

/// Alternating least squares of one draft.
class ValueAlternation {
 public:
  ValueAlternation(Allocator& allocator, Parallel& parallel, const AlternationOptions& options,
                   const UnitVectors& targets, ValueDraft& draft);

  /// Set the draft, which must have as many bits as channels: the signs along the principal directions of the targets.
  void start_from_signs();

  /// Find the bits of all targets and return the mean squared error of the held-out ones.
  double encode();

  /// Solve for codes and offset, given the bits.
  void solve_codes();

  /// Solve for the proposal of a draft that started from signs, given the bits.
  void solve_proposal();

  /// Unit vectors of what bits and scales leave of the targets; `norm` is their mean length before.
  UnitVectors residuals(double& norm) const;

 private:
  bool bit(size_t token, size_t n) const { return is_set(packed_.data() + token * words_, n); }

  Allocator& allocator_;
  Parallel& parallel_;
  AlternationOptions options_;
  const UnitVectors& targets_;
  ValueDraft& draft_;
  size_t words_;
  Vector<uint32_t> packed_;  // [tokens][words]
  Vector<float> scales_;     // [tokens]
  Vector<double> moments_;   // of the targets with a 1 behind each, once started from signs
};

}  // namespace kvq
