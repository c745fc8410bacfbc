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

/// Errors of scores (by keys) and outputs (by values) that gain-shape codes make, over the least that scales can reach:
/// geometric means over layers.
struct Outliers {
  double key_noise;
  double scaled_key_noise;
  double value_noise;
  double scaled_value_noise;

  bool is_of_keys() const { return key_noise > value_noise; }
  /// Of keys or values, whichever is larger; and what scales make of it.
  double noise() const { return is_of_keys() ? key_noise : value_noise; }
  double scaled_noise() const { return is_of_keys() ? scaled_key_noise : scaled_value_noise; }
};
Outliers outliers_of(const kvq::Centres& scales);
/// From this noise on, a model has outlier channels: with even ones it is 1.0 to 1.1.
inline constexpr double kNoisyChannels = 1.5;

/// Whether the checkpoint has the weights of attention as numbers, not packed.
bool has_attention_weights(const Checkpoint& checkpoint, const ModelConfig& config);

/// Tell a trainer of scales what a layer's output projection reads values with; nothing of packed weights.
void add_output_projection(kvq::CentresTrainer& trainer, const Checkpoint& checkpoint, const ModelConfig& config,
                           int32_t layer);

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
