// Checks of the batches of appending and attention, which several functions take.
#pragma once

#include "api/handles.h"

#include <span>

namespace kvq::api {

/// Check what an append has beside strides. All sequences belong to the cache and occur once. The result is in memory
/// of `scratch`.
Vector<SequenceTokens> checked_sequences(kvq_cache& cache, const kvq_append_batch& batch, Allocator& scratch);

/// Keys and values of a batch, their strides completed.
TokenBatch tokens_of(const kvq_cache& cache, int32_t layer, const kvq_append_batch& batch,
                     std::span<const SequenceTokens> sequences);

/// Check what a batch has beside its sequences, and complete its strides.
kvq_attend_batch checked_batch(const kvq_cache& cache, const kvq_attend_batch& given);

}  // namespace kvq::api
