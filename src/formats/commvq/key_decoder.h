// Indices to keys as defined in codebook.h: the reference for faster decoders.
#pragma once

#include "formats/commvq/codebook.h"

#include <cstdint>

namespace kvq {

/// Decode one head of one token.
///
/// \param indices  [groups][stages]{a, b}
/// \param key      [head_dim], before RoPE
void decode_key(const CodebookShape& shape, const LayerCodebook& layer, int32_t head, const uint8_t* indices,
                float norm, float* key);

}  // namespace kvq
