#pragma once

#include <filesystem>

#include "llama/balance.h"
#include "llama/config.h"
#include "terminal/progress.h"

namespace cli {

/// As llama::find_scales; `options.model_id` is the checkpoint's where scales are for a cache.
kvq::Centres find_scales(const kvq::Context& context, const llama::Checkpoint& checkpoint,
                         const llama::ModelConfig& config, llama::ScaleOptions options, Progress& progress);

/// Write a checkpoint with scales folded in, and all that the model's directory has beside its weights; returns the
/// bytes of the weights. The directory must be new or empty; a failure leaves none behind.
uint64_t write_balanced(const std::filesystem::path& directory, const std::filesystem::path& model,
                        const llama::Checkpoint& checkpoint, const llama::ModelConfig& config,
                        const kvq::Centres& scales);

}  // namespace cli
