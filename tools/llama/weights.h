#pragma once

#include "checkpoint.h"
#include "config.h"
#include "device.h"

namespace llama {

struct LayerWeights {
  Array input_norm;           // [hidden]
  Linear q, k, v, o;          // [heads·head_dim, hidden], o: [hidden, heads·head_dim]
  Array q_norm, k_norm;       // [head_dim], or empty
  Array post_attention_norm;  // [hidden]
  Linear gate, up, down;      // [intermediate, hidden], down: [hidden, intermediate]
};

/// The weights of a model, in the memory of a device; on the CPU matrices are where their files are mapped.
struct Weights {
  Matrix embedding;  // [vocabulary, hidden]
  Array final_norm;
  Linear output;  // [vocabulary, hidden]; the embedding's numbers if they are tied
  std::vector<LayerWeights> layers;
  Linear& at(const LinearLayer& layer);
  double bits = 0.0;         // mean bits per weight in the file
  double linear_bits = 0.0;  // the same of packed layers alone, without biases; 0 if there are none
  uint64_t fingerprint = 0;  // of the checkpoint
};

/// Read every tensor the configuration calls for and check its shape.
/// \param context  of the device, for packed layers, which it must outlive; nullptr: there are none.
Weights load_weights(const std::shared_ptr<const Checkpoint>& checkpoint, const ModelConfig& config, Device& device,
                     kvq_context* context);

}  // namespace llama
