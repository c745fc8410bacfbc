// Layers of a cache whose shapes differ from its options'.
#pragma once

#include "formats/head_shape.h"
#include "kvq.h"

#include <vector>

namespace kvq::api {

/// Check the window and the chunk of a layer, of which one may be given.
void require_window(int32_t sliding_window, int32_t attention_chunk, int32_t least, const char* window,
                    const char* chunk);

/// The caller's shapes as structs of this library, with heads, channels and `rotary_begin` filled in. Throws
/// KVQ_E_ARGUMENT unless every one is a layer's and fits the other options, which have been checked.
std::vector<kvq_layer_shape> read_shapes(const kvq_cache_options& options);

/// Channels of the heads of a layer.
HeadShape head_of(const kvq_cache_options& options, int32_t layer);

/// Window and chunk of a layer; 0: none.
int32_t sliding_window_of(const kvq_cache_options& options, int32_t layer);
int32_t attention_chunk_of(const kvq_cache_options& options, int32_t layer);

/// First channel of a layer's keys that is rotated.
int32_t rotary_begin_of(const kvq_cache_options& options, int32_t layer);
/// Pairs of channels that RoPE rotates; 0: none.
int32_t rope_pairs_of(const kvq_cache_options& options, int32_t layer);

/// The first layer whose heads, or pairs of channels that are rotated, are not as the options say; −1 without one.
int32_t uneven_layer(const kvq_cache_options& options);
/// The same for heads alone.
int32_t layer_with_other_heads(const kvq_cache_options& options);

}  // namespace kvq::api
