#pragma once

#include <functional>
#include <string>
#include <vector>

#include "config.h"
#include "threads.h"
#include "weights.h"

namespace llama {

/// Scales of one layer's key and value channels, which a cache's codes then lose less of. They change nothing that the
/// model computes: queries are divided by those of keys, the output projection's columns by those of values.
struct LayerBalance {
  std::vector<float> keys;    // [kv_heads, head_dim], both channels of a RoPE pair alike
  std::vector<float> values;  // [kv_heads, head_dim]

  // The largest of all heads: of two channels' scales the ratio, and of a key channel's bias over its spread.
  double key_imbalance = 1.0;
  double value_imbalance = 1.0;
  double largest_offset = 0.0;

  // Expected squared error of scores, and of outputs, from codes with one gain a token, relative to channels in balance
  // and without offsets: as the weights are, and with the scales. Means over heads.
  double key_noise = 1.0;
  double value_noise = 1.0;
  double balanced_key_noise = 1.0;
  double balanced_value_noise = 1.0;
};

/// How channels are judged by weights alone: a layer's normalized input is taken as white, so that a channel's energy
/// is that of its row times the norm's weights, and an output channel's that of its column of the output projection.
/// With `powers_of_two` scales are rounded to such, which folds them into weights without rounding.
LayerBalance balance_of(const Checkpoint& checkpoint, const ModelConfig& config, int32_t layer, bool powers_of_two,
                        ThreadPool& threads);

/// The checkpoint's files, one at a time, with the scales of all layers folded into weights and biases of q, k, v and o
/// (of the norms of q and k where there are such): `write` gets the file's name and what it holds. Types, shapes and
/// other tensors stay. An Error if a number becomes too large for its type.
void fold(const Checkpoint& checkpoint, const ModelConfig& config, const std::vector<LayerBalance>& layers,
          const std::function<void(const std::string& file, const SafetensorsContent& content)>& write);

}  // namespace llama
