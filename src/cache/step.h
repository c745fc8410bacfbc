// Steps: appends to all layers of sequences that count together, or not at all.
#pragma once

#include "cache/sequence.h"

namespace kvq {

/// Begin a step of these sequences, with at most `count` tokens for each layer of each: all or none.
void begin_step(Cache& cache, std::span<const SequenceTokens> sequences);

/// Keep the first `count` tokens of the step, or all if `keeps_all`.
void commit_step(std::span<const SequenceTokens> sequences, bool keeps_all);

/// Take back all tokens of the step.
void abort_step(std::span<const SequenceTokens> sequences);

/// Throw KVQ_E_STATE if the sequence is in a step.
void require_no_step(const Sequence& sequence);

}  // namespace kvq
