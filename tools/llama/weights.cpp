#include "weights.h"

#include "error.h"
#include "kvq.hpp"

namespace llama {
namespace {

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

// Reads tensors of known shapes into a device's memory and keeps count of their bits. Matrices stay as they are stored,
// on the CPU in files that stay mapped as long as there are such matrices.
class Reader {
 public:
  Reader(std::shared_ptr<const Checkpoint> checkpoint, Device& device, kvq_context* context)
      : checkpoint_(std::move(checkpoint)), device_(device), context_(context) {}

  Array vector(const std::string& name, int64_t size) { return device_.upload(to_float(find(name, {size}))); }

  Matrix matrix(const std::string& name, int64_t rows, int64_t columns) {
    const TensorView& tensor = find(name, {rows, columns});
    const StoredNumbers stored{{checkpoint_, tensor.data.data()}, float_dtype(tensor)};
    return {rows, columns, device_.place(stored, static_cast<size_t>(tensor.elements()))};
  }

  Linear linear(const LinearLayer& layer) {
    const std::span<const std::byte> file = checkpoint_->file_of_matrix(layer.name);
    if (context_ != nullptr && !file.empty()) return packed(file, layer);
    Linear linear{matrix(layer.name + ".weight", layer.out, layer.in), {}};
    if (layer.bias) linear.bias = vector(layer.name + ".bias", layer.out);
    return linear;
  }

  double bits() const { return 8.0 * static_cast<double>(bytes_) / static_cast<double>(elements_); }
  double linear_bits() const { return packed_elements_ > 0.0 ? packed_bits_ / packed_elements_ : 0.0; }

 private:
  const TensorView& find(const std::string& name, const std::vector<int64_t>& shape) {
    const TensorView& tensor = checkpoint_->at(name);
    if (tensor.shape != shape) {
      throw Error("tensor " + name + " has shape " + shape_text(tensor.shape) + ", config.json asks for " +
                  shape_text(shape));
    }
    bytes_ += tensor.data.size();
    elements_ += tensor.elements();
    return tensor;
  }

  Linear packed(std::span<const std::byte> file, const LinearLayer& layer) {
    const auto matrix = std::make_shared<const kvq::Matrix>(kvq::Matrix::load(context_, file, layer.name));
    checkpoint_->forget();  // the matrix has copies
    const qp_matrix_info info = matrix->describe();
    if (info.rows != layer.out || info.columns != layer.in) {
      throw Error("matrix " + layer.name + " has shape " + shape_text({info.rows, info.columns}) +
                  ", config.json asks for " + shape_text({layer.out, layer.in}));
    }
    if ((info.has_bias != 0) != layer.bias) {
      throw Error("matrix " + layer.name + (layer.bias ? " has no bias" : " has a bias") +
                  ", other than config.json says");
    }
    const int64_t weights = layer.out * layer.in;
    bytes_ += info.bytes;
    elements_ += weights + (layer.bias ? layer.out : 0);
    packed_bits_ += info.bits * static_cast<double>(weights);
    packed_elements_ += static_cast<double>(weights);
    return {{layer.out, layer.in, {}}, {}, matrix};
  }

  std::shared_ptr<const Checkpoint> checkpoint_;
  Device& device_;
  kvq_context* context_;
  size_t bytes_ = 0;
  int64_t elements_ = 0;
  double packed_bits_ = 0.0;
  double packed_elements_ = 0.0;
};

LayerWeights load_layer(Reader& reader, const ModelConfig& config, int32_t index) {
  const std::string prefix = "model.layers." + std::to_string(index) + ".";
  const auto [q, k, v, o, gate, up, down] = linear_layers(config, index);
  LayerWeights weights;
  weights.input_norm = reader.vector(prefix + "input_layernorm.weight", config.hidden_size);
  weights.q = reader.linear(q);
  weights.k = reader.linear(k);
  weights.v = reader.linear(v);
  weights.o = reader.linear(o);
  if (config.qk_norm) {
    weights.q_norm = reader.vector(prefix + "self_attn.q_norm.weight", config.head_dim);
    weights.k_norm = reader.vector(prefix + "self_attn.k_norm.weight", config.head_dim);
  }
  weights.post_attention_norm = reader.vector(prefix + "post_attention_layernorm.weight", config.hidden_size);
  weights.gate = reader.linear(gate);
  weights.up = reader.linear(up);
  weights.down = reader.linear(down);
  return weights;
}

}  // namespace

Linear& Weights::at(const LinearLayer& layer) {
  constexpr std::array<Linear LayerWeights::*, kLinearRoles> kMembers = {
      &LayerWeights::q,    &LayerWeights::k,  &LayerWeights::v,   &LayerWeights::o,
      &LayerWeights::gate, &LayerWeights::up, &LayerWeights::down};  // by LinearRole
  return layers[static_cast<size_t>(layer.layer)].*kMembers[static_cast<size_t>(layer.role)];
}

Weights load_weights(const std::shared_ptr<const Checkpoint>& checkpoint, const ModelConfig& config, Device& device,
                     kvq_context* context) {
  Reader reader(checkpoint, device, context);
  Weights weights;
  weights.embedding = reader.matrix("model.embed_tokens.weight", config.vocab_size, config.hidden_size);
  weights.output.weight = config.tied_embeddings
                              ? weights.embedding
                              : reader.matrix("lm_head.weight", config.vocab_size, config.hidden_size);
  weights.final_norm = reader.vector("model.norm.weight", config.hidden_size);
  for (int32_t i = 0; i < config.n_layers; ++i) weights.layers.push_back(load_layer(reader, config, i));
  weights.bits = reader.bits();
  weights.linear_bits = reader.linear_bits();
  weights.fingerprint = checkpoint->fingerprint();
  return weights;
}

}  // namespace llama
