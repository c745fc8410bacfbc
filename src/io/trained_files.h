// Files of trained data: named tensors, and everything else as metadata. Reading a file gives the same object.
#pragma once

#include "formats/commvq/model_codebook.h"
#include "formats/gain_shape/model_centres.h"
#include "formats/router/router.h"
#include "io/safetensors.h"

#include <cstddef>
#include <span>
#include <string_view>

namespace kvq::io {

/// In the metadata of each file.
inline constexpr std::string_view kCodebookType = "kvq.codebook";
inline constexpr std::string_view kCentresType = "kvq.centres";
inline constexpr std::string_view kRouterType = "kvq.router";

/// Check every field and every number. Throw KVQ_E_FORMAT, and KVQ_E_MISMATCH for a file of another version.
ModelCodebook read_codebook(Allocator& allocator, std::span<const std::byte> bytes);
ModelCentres read_centres(Allocator& allocator, std::span<const std::byte> bytes);
ModelRouter read_router(Allocator& allocator, std::span<const std::byte> bytes);

/// Make files that can be written while the object lives.
SafetensorsWriter codebook_file(Allocator& allocator, const ModelCodebook& codebook);  // layers.N.<array>, if present
SafetensorsWriter centres_file(Allocator& allocator, const ModelCentres& centres);     // layers.N.<side>.centres
SafetensorsWriter router_file(Allocator& allocator, const ModelRouter& router);        // groups.N.w1, w2 and w3

/// Names of the experts, separated by ", ".
String experts_text(Allocator& allocator, std::span<const FormatPair> experts);

}  // namespace kvq::io
