#pragma once

#include "formats/gain_shape/model_centres.h"
#include "io/safetensors.h"

#include <cstddef>
#include <span>

namespace kvq::io {

inline constexpr int32_t kCentresFileVersion = 1;

/// Read centres from a safetensors file. Every field and every number is checked. Throws KVQ_E_FORMAT, and
/// KVQ_E_MISMATCH for a file of another version.
ModelCentres read_centres(Allocator& allocator, std::span<const std::byte> bytes);

/// The file of centres, ready to be written while they live: tensors `layers.N.keys.centres` and
/// `layers.N.values.centres` for each layer that is present, and everything else as metadata. Reading it back gives the
/// same centres.
SafetensorsWriter centres_file(Allocator& allocator, const ModelCentres& centres);

}  // namespace kvq::io
