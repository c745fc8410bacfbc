// Trains the codes of a layer's values: alternating least squares, with bit flips for the codes, or a network that
// proposes bits, and the codes with it, by gradient descent. The shape says which.
#pragma once

#include "backend/training.h"
#include "core/memory.h"
#include "core/parallel.h"
#include "formats/commvq/codebook.h"

#include <cstdint>
#include <optional>
#include <span>

namespace kvq {

struct ValueTrainingOptions {
  int32_t tokens = 49152;        // at most, drawn by `seed`
  int32_t rounds = 8;            // of encoding all tokens and solving for the codes, per bit of a scalar
  int32_t joint_rounds = 4;      // then, with 2 bits, of both stages together
  int32_t network_rounds = 40;   // of NetworkTrainingOptions::kStepsOfRound steps, for each code
  float ridge = 1e-3F;           // of the codes, towards those of the round before
  float proposal_ridge = 1e-2F;  // of the proposal, towards zero; both relative to the mean of the diagonal
  float held_out = 0.0625F;      // share of the tokens that the best round is chosen by
  uint64_t seed = 1;
};

struct ValueTrainingProgress {
  int32_t round;  // rounds done
  int32_t rounds;
  double error;  // squared, of unit vectors, on held-out tokens: of the current stage, relative to what it started from
};

/// Called on the training thread after every round; false cancels.
struct ValueTrainingCallback {
  bool (*call)(void* user, const ValueTrainingProgress& progress) = nullptr;
  void* user = nullptr;
};

/// Fill the arrays of `codebook` that concern values from `values` [tokens][kv_heads * head_dim]. The result depends
/// only on the arguments. Returns Σ|v̂ − v|² / Σ|v|² of the held-out tokens, or nothing if cancelled, with the codebook
/// as it was. Throws KVQ_E_ARGUMENT: bits other than 1 and 2, options, numbers that are not finite, fewer than two
/// tokens.
std::optional<double> train_values(Allocator& allocator, Parallel& parallel, Training& backend,
                                   const CodebookShape& shape, std::span<const float> values,
                                   const ValueTrainingOptions& options, const ValueTrainingCallback& callback,
                                   LayerCodebook& codebook);

}  // namespace kvq
