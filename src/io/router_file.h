#pragma once

#include "formats/router/router.h"
#include "io/safetensors.h"

#include <cstddef>
#include <span>

namespace kvq::io {

inline constexpr int32_t kRouterFileVersion = 1;

/// Read routers from a safetensors file. Every field and every number is checked. Throws KVQ_E_FORMAT, and
/// KVQ_E_MISMATCH for a file of another version.
ModelRouter read_router(Allocator& allocator, std::span<const std::byte> bytes);

/// The file of routers, ready to be written while they live: tensors `groups.N.w1`, `w2` and `w3` for each group of
/// layers, and everything else as metadata. Reading it back gives the same routers.
SafetensorsWriter router_file(Allocator& allocator, const ModelRouter& router);

/// Names of the experts, separated by ", ".
String experts_text(Allocator& allocator, std::span<const FormatPair> experts);

}  // namespace kvq::io
