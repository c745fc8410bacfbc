#include "weights.h"

#include <string>

#include "error.h"

namespace llama {
namespace {

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

// Reads tensors of known shapes into a device's memory and keeps count of their bits.
class Reader {
 public:
  Reader(const Checkpoint& checkpoint, Device& device) : checkpoint_(checkpoint), device_(device) {}

  Array vector(const std::string& name, int64_t size) { return read(name, {size}); }

  Matrix matrix(const std::string& name, int64_t rows, int64_t columns) {
    return {rows, columns, read(name, {rows, columns})};
  }

  Linear linear(const std::string& name, int64_t out, int64_t in, bool bias) {
    Linear linear{matrix(name + ".weight", out, in), {}};
    if (bias) linear.bias = vector(name + ".bias", out);
    return linear;
  }

  double bits() const { return 8.0 * static_cast<double>(bytes_) / static_cast<double>(elements_); }

 private:
  Array read(const std::string& name, const std::vector<int64_t>& shape) {
    const TensorView& tensor = checkpoint_.at(name);
    if (tensor.shape != shape) {
      throw Error("tensor " + name + " has shape " + shape_text(tensor.shape) + ", config.json asks for " +
                  shape_text(shape));
    }
    bytes_ += tensor.data.size();
    elements_ += tensor.elements();
    return device_.upload(to_float(tensor));
  }

  const Checkpoint& checkpoint_;
  Device& device_;
  size_t bytes_ = 0;
  int64_t elements_ = 0;
};

LayerWeights load_layer(Reader& reader, const ModelConfig& config, int32_t index) {
  const std::string layer = "model.layers." + std::to_string(index) + ".";
  const std::string attention = layer + "self_attn.";
  const int64_t hidden = config.hidden_size;
  const int64_t q_size = int64_t{config.q_heads} * config.head_dim;
  const int64_t kv_size = int64_t{config.kv_heads} * config.head_dim;

  LayerWeights weights;
  weights.input_norm = reader.vector(layer + "input_layernorm.weight", hidden);
  weights.q = reader.linear(attention + "q_proj", q_size, hidden, config.qkv_bias);
  weights.k = reader.linear(attention + "k_proj", kv_size, hidden, config.qkv_bias);
  weights.v = reader.linear(attention + "v_proj", kv_size, hidden, config.qkv_bias);
  weights.o = reader.linear(attention + "o_proj", hidden, q_size, config.o_bias);
  if (config.qk_norm) {
    weights.q_norm = reader.vector(attention + "q_norm.weight", config.head_dim);
    weights.k_norm = reader.vector(attention + "k_norm.weight", config.head_dim);
  }
  weights.post_attention_norm = reader.vector(layer + "post_attention_layernorm.weight", hidden);
  weights.gate = reader.linear(layer + "mlp.gate_proj", config.intermediate_size, hidden, config.mlp_bias);
  weights.up = reader.linear(layer + "mlp.up_proj", config.intermediate_size, hidden, config.mlp_bias);
  weights.down = reader.linear(layer + "mlp.down_proj", hidden, config.intermediate_size, config.mlp_bias);
  return weights;
}

}  // namespace

Weights load_weights(const Checkpoint& checkpoint, const ModelConfig& config, Device& device) {
  Reader reader(checkpoint, device);
  Weights weights;
  weights.embedding = reader.matrix("model.embed_tokens.weight", config.vocab_size, config.hidden_size);
  weights.output.weight = config.tied_embeddings
                              ? weights.embedding
                              : reader.matrix("lm_head.weight", config.vocab_size, config.hidden_size);
  weights.final_norm = reader.vector("model.norm.weight", config.hidden_size);
  for (int32_t i = 0; i < config.n_layers; ++i) weights.layers.push_back(load_layer(reader, config, i));
  weights.bits = reader.bits();
  weights.fingerprint = checkpoint.fingerprint();
  return weights;
}

}  // namespace llama
