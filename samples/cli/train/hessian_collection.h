#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "llama/hessians.h"
#include "options/compute.h"

namespace cli {

/// Run the model over the windows and collect what its linear layers read. An Error if that does not fit the machine's
/// memory.
llama::Hessians collect_hessians(const std::filesystem::path& model, const ComputeOptions& compute,
                                 std::span<const llama::LinearLayer> layers,
                                 std::span<const std::span<const int32_t>> windows);

}  // namespace cli
