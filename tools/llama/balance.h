#pragma once

#include <functional>
#include <string>
#include <vector>

#include "config.h"
#include "kvq.hpp"
#include "weights.h"

namespace llama {

struct ScaleOptions {
  bool fold = false;  // for weights rather than for a cache
  bool powers_of_two = false;
  uint64_t model_id = 0;
};

/// Scales of a checkpoint's keys and values, by its weights alone (kvq_centres_trainer_add_weights). `done` is called
/// after every layer.
kvq::Centres find_scales(
    kvq_context* context, const Checkpoint& checkpoint, const ModelConfig& config, const ScaleOptions& options,
    const std::function<void()>& done = [] {});

/// Scales of one layer's channels, [kv_heads, head_dim]. Only their ratios within a head mean anything.
struct LayerScales {
  std::vector<float> keys;  // both channels of a RoPE pair alike
  std::vector<float> values;
};
LayerScales scales_of(const kvq::Centres& centres, int32_t layer);

/// The checkpoint's files, one at a time, with the scales of all layers folded into weights and biases of q, k, v and o
/// (of the norms of q and k where there are such): `write` gets the file's name and what it holds. They change nothing
/// that the model computes. Types, shapes and other tensors stay. An Error if a number becomes too large for its type.
void fold(const Checkpoint& checkpoint, const ModelConfig& config, const std::vector<LayerScales>& layers,
          const std::function<void(const std::string& file, const SafetensorsContent& content)>& write);

}  // namespace llama
