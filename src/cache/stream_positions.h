// Positions of several streams that a call gives (M-RoPE): keys and queries are rotated before it goes on.
#pragma once

#include "cache/cache.h"

namespace kvq {

/// Rotates a batch's keys by `positions`, `[tokens.n, kRopeStreams]`, unless they are null or the layer has no RoPE.
/// `k`, `v`: the caller's tensors. Changed tokens are in memory of the work space.
void rotate_keys(Cache& cache, const LayerShape& shape, const void* k, const void* v, const int32_t* positions,
                 Workspace& workspace, TokenBatch& tokens);

/// Likewise the queries of a batch, `queries` of them.
void rotate_queries(Cache& cache, const LayerShape& shape, int32_t queries, const int32_t* positions,
                    Workspace& workspace, AttendBatch& batch);

}  // namespace kvq
