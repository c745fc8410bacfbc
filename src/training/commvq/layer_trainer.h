// Training of one layer: both sides, one after the other.
#pragma once

#include "backend/training.h"
#include "core/memory.h"
#include "core/parallel.h"
#include "core/training_progress.h"
#include "formats/commvq/model_codebook.h"
#include "kvq.h"

#include <cstdint>
#include <span>

namespace kvq {

struct TrainingRounds {
  int32_t keys = 0;  // 0: as many as the algorithm's default
  int32_t values = 0;
};

/// Train one side from numbers [tokens][kv_heads * head_dim], keys before RoPE, and fill its arrays of `layer`. Returns
/// its errors over tokens held out of training. The result depends on nothing but the numbers, the shape, the rounds
/// and the seed. Throws KVQ_E_CANCELLED, and KVQ_E_ARGUMENT for numbers that nothing can be learned from.
KeyErrors train_layer_keys(Allocator& allocator, Training& backend, const CodebookShape& shape,
                           std::span<const float> keys, int32_t rounds, uint64_t seed, const TrainingProgress& progress,
                           LayerCodebook& layer);
double train_layer_values(Allocator& allocator, Parallel& parallel, Training& backend, const CodebookShape& shape,
                          std::span<const float> values, int32_t rounds, uint64_t seed,
                          const TrainingProgress& progress, LayerCodebook& layer);

}  // namespace kvq
