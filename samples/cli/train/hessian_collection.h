#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "commands/compute.h"
#include "llama/hessians.h"

namespace cli {

/// Texts in a model's tokens, in windows.
struct CalibrationTexts {
  /// \param files  none: no windows, and an empty note.
  CalibrationTexts(const std::filesystem::path& model, const std::vector<std::string>& files, int64_t tokens,
                   const llama::ModelConfig& config);

  std::vector<std::vector<int32_t>> tokens;  // of each text
  std::vector<std::span<const int32_t>> windows;
  std::string note;  // the same only for the same tokens in the same windows
};

/// Run the model over the windows and collect what its linear layers read. An Error if that does not fit the machine's
/// memory.
llama::Hessians collect_hessians(const std::filesystem::path& model, const ComputeOptions& compute,
                                 std::span<const llama::LinearLayer> layers,
                                 std::span<const std::span<const int32_t>> windows);

}  // namespace cli
