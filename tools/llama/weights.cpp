#include "weights.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "error.h"
#include "json_document.h"
#include "kvq.hpp"
#include "mapped_file.h"
#include "system.h"

namespace llama {
namespace {

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

/// An index comes with downloaded weights: it may only name files beside itself.
void check_shard_name(const std::string& name, const std::string& place) {
  const std::filesystem::path path = path_of(name);
  const bool plain =
      !name.empty() && name.find('\0') == std::string::npos && path.filename() == path && name != "." && name != "..";
  if (!plain) throw Error(place + ": " + in_quotes(name) + " is not the name of a file in the model directory");
}

uint64_t parse_fingerprint(const std::string& text, const std::string& source) {
  uint64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (code == std::errc() && end == text.data() + text.size()) return value;
  throw Error(source + ": metadata " + in_quotes(kFingerprintField) + " is " + in_quotes(text) +
              ", expected up to 16 hexadecimal digits");
}

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

  Array vector(const std::string& name, int64_t size, float offset = 0.0f) {
    std::vector<float> numbers = to_float(find(name, {size}));
    for (float& number : numbers) number += offset;
    return device_.upload(std::move(numbers));
  }

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
    const TensorView& tensor = checkpoint_->at(name, shape);
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
  const auto norm = [&](const std::string& name, int64_t size) {
    return reader.vector(prefix + name + ".weight", size, norm_offset(config));
  };
  LayerWeights weights;
  weights.input_norm = norm("input_layernorm", config.hidden_size);
  weights.q = reader.linear(q);
  weights.k = reader.linear(k);
  weights.v = reader.linear(v);
  weights.o = reader.linear(o);
  if (config.qk_norm) {
    weights.q_norm = norm("self_attn.q_norm", config.head_dim);
    weights.k_norm = norm("self_attn.k_norm", config.head_dim);
  }
  if (config.output_norms) {
    weights.attention_output_norm = norm("post_attention_layernorm", config.hidden_size);
    weights.mlp_norm = norm("pre_feedforward_layernorm", config.hidden_size);
    weights.mlp_output_norm = norm("post_feedforward_layernorm", config.hidden_size);
  } else {
    weights.mlp_norm = norm("post_attention_layernorm", config.hidden_size);
  }
  weights.gate = reader.linear(gate);
  weights.up = reader.linear(up);
  weights.down = reader.linear(down);
  return weights;
}

}  // namespace

bool Checkpoint::is_in(const std::filesystem::path& directory) {
  return is_present(directory / kSingleFile) || is_present(directory / kIndexFile);
}

void Checkpoint::add_file(const std::filesystem::path& path) {
  shards_.push_back({path.filename().string(), SafetensorsFile(path)});
  for (const TensorView& tensor : shards_.back().file.tensors()) tensors_.emplace(tensor.name, &tensor);
}

Checkpoint::Checkpoint(const std::filesystem::path& place) : place_(place) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(place, ignored)) {
    if (place.extension() == ".json")
      throw Error(place.string() + ": holds no weights: give the directory that it is in");
    add_file(place);
  } else if (is_present(place / kSingleFile)) {
    add_file(place / kSingleFile);
  } else {
    add_shards(place / kIndexFile);
  }
}

void Checkpoint::add_shards(const std::filesystem::path& index_path) {
  if (!is_present(index_path)) {
    throw Error(place_.string() + ": found neither " + kSingleFile + " nor " + kIndexFile);
  }
  const nlohmann::json document = read_json(index_path);
  const JsonObject weight_map = JsonObject(document, index_path.string()).object("weight_map");
  std::map<std::string, std::vector<std::string>> tensors_of_shard;
  for (const auto& [tensor, shard] : weight_map.json().items()) {
    if (!shard.is_string()) weight_map.refuse(tensor.c_str(), "expected the name of a file");
    check_shard_name(shard.get<std::string>(), weight_map.place() + ": " + tensor);
    tensors_of_shard[shard.get<std::string>()].push_back(tensor);
  }
  for (const auto& [shard, names] : tensors_of_shard) {
    shards_.push_back({shard, SafetensorsFile(place_ / path_of(shard))});
    const SafetensorsFile& file = shards_.back().file;
    for (const std::string& name : names) {
      const TensorView* tensor = file.find(name);
      if (tensor == nullptr)
        throw Error((place_ / path_of(shard)).string() + ": tensor " + in_quotes(name) + " is missing");
      tensors_.emplace(name, tensor);
    }
  }
}

const TensorView* Checkpoint::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found != tensors_.end() ? found->second : nullptr;
}

const TensorView& Checkpoint::at(std::string_view name) const {
  const TensorView* tensor = find(name);
  if (tensor == nullptr) throw Error(place_.string() + ": tensor " + in_quotes(name) + " is missing");
  return *tensor;
}

const TensorView& Checkpoint::at(const std::string& name, const std::vector<int64_t>& shape) const {
  const TensorView& tensor = at(name);
  if (tensor.shape == shape) return tensor;
  throw Error("tensor " + name + " has shape " + shape_text(tensor.shape) + ", config.json asks for " +
              shape_text(shape));
}

std::span<const std::byte> Checkpoint::file_of_matrix(const std::string& name) const {
  for (const Shard& shard : shards_) {
    if (shard.file.metadata().contains(name + ".scheme")) return shard.file.bytes();
  }
  return {};
}

void Checkpoint::forget() const {
  for (const Shard& shard : shards_) shard.file.forget();
}

uint64_t Checkpoint::fingerprint() const {
  for (const Shard& shard : shards_) {
    const auto stated = shard.file.metadata().find(kFingerprintField);
    if (stated != shard.file.metadata().end()) return parse_fingerprint(stated->second, place_.string());
  }
  constexpr size_t kPieces = 16;
  constexpr size_t kPieceBytes = 64;
  uint64_t hash = 0xCBF29CE484222325u;  // FNV-1a
  const auto add = [&hash](const void* bytes, size_t size) {
    for (size_t i = 0; i < size; ++i) hash = (hash ^ static_cast<const unsigned char*>(bytes)[i]) * 0x100000001B3u;
  };
  for (const auto& [name, tensor] : tensors_) {
    add(name.data(), name.size() + 1);
    add(tensor->dtype.data(), tensor->dtype.size());
    for (const int64_t size : tensor->shape) add(&size, sizeof(size));
    const std::span<const std::byte> data = tensor->data;
    const size_t length = std::min(kPieceBytes, data.size());
    for (size_t i = 0; i < kPieces; ++i) add(data.data() + (data.size() - length) * i / (kPieces - 1), length);
  }
  return hash;
}

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
  weights.final_norm = reader.vector("model.norm.weight", config.hidden_size, norm_offset(config));
  for (int32_t i = 0; i < config.n_layers; ++i) weights.layers.push_back(load_layer(reader, config, i));
  weights.bits = reader.bits();
  weights.linear_bits = reader.linear_bits();
  weights.fingerprint = checkpoint->fingerprint();
  return weights;
}

}  // namespace llama
