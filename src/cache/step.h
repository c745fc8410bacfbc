// Steps: appends to all layers of sequences that count together, or not at all.
#pragma once

#include "cache/sequence.h"

namespace kvq {

/// Throw unless a step of these sequences may begin, with at most `count` tokens for each layer of each. Returns the
/// calls that it may consist of.
ExpectedBatch check_step(const Cache& cache, std::span<const SequenceTokens> sequences);
/// Begin it, once there is room for these calls: all sequences or none.
void begin_step(std::span<const SequenceTokens> sequences, Allocator& scratch);

/// Keep `count` tokens of the step, or all if `keeps_all`: those with the numbers `kept_slots`, sequence by sequence,
/// or the first if that is null.
void commit_step(std::span<const SequenceTokens> sequences, bool keeps_all, const int32_t* kept_slots,
                 Allocator& scratch);

/// What committing such steps takes of `scratch`, beside what sealing pages takes.
uint64_t commit_bytes(const Cache& cache, const ExpectedBatch& expected);

/// Take back all tokens of the step.
void abort_step(std::span<const SequenceTokens> sequences, Allocator& scratch);

/// Throw KVQ_E_STATE if the sequence is in a step.
void require_no_step(const Sequence& sequence);

}  // namespace kvq
