#pragma once

#include "formats/commvq/model_codebook.h"
#include "io/safetensors.h"

#include <cstddef>
#include <span>

namespace kvq::io {

inline constexpr int32_t kCodebookFileVersion = 1;

/// Read codebooks from a safetensors file. Every field and every number is checked. Throws KVQ_E_FORMAT, and
/// KVQ_E_MISMATCH for a file of another version.
ModelCodebook read_codebook(Allocator& allocator, std::span<const std::byte> bytes);

/// The file of a codebook, ready to be written while the codebook lives: a tensor `layers.N.<array>` for each array of
/// each layer that is present, and everything else as metadata. Reading it back gives the same codebook.
SafetensorsWriter codebook_file(Allocator& allocator, const ModelCodebook& codebook);

}  // namespace kvq::io
