#pragma once

#include <map>

#include "config.h"
#include "device.h"
#include "safetensors.h"

namespace llama {

/// Metadata of a file whose linear layers are packed: Checkpoint::fingerprint() of what it was made from, in
/// hexadecimal.
inline constexpr const char* kFingerprintField = "model_fingerprint";

/// The tensors of a model directory: `model.safetensors`, or the shards that `model.safetensors.index.json` names; or
/// those of one file. Linear layers may be packed: matrices as qp_matrix_save() writes them, under the layers' names.
class Checkpoint {
 public:
  /// \param place  a model directory, or a safetensors file.
  explicit Checkpoint(const std::filesystem::path& place);
  static bool is_in(const std::filesystem::path& directory);

  /// nullptr if there is no such tensor. Views live as long as the checkpoint.
  const TensorView* find(std::string_view name) const;
  const TensorView& at(std::string_view name) const;
  /// The same of the shape that config.json asks for; an Error if it is another.
  const TensorView& at(const std::string& name, const std::vector<int64_t>& shape) const;
  /// All of them, in ascending order of name.
  const std::map<std::string, const TensorView*, std::less<>>& tensors() const { return tensors_; }
  /// The bytes of the file that holds a packed matrix; empty if there is none of this name.
  std::span<const std::byte> file_of_matrix(const std::string& name) const;
  /// The files, by their names in the directory.
  struct Shard {
    std::string name;
    SafetensorsFile file;
  };
  const std::vector<Shard>& shards() const { return shards_; }
  /// As MappedFile::forget(), of all files.
  void forget() const;
  /// A number that differs between checkpoints: of names, types, shapes, and samples of every tensor's bytes. Packed
  /// ones have that of the checkpoint that they were made from.
  uint64_t fingerprint() const;

 private:
  void add_file(const std::filesystem::path& path);
  void add_shards(const std::filesystem::path& index_path);

  std::filesystem::path place_;
  std::vector<Shard> shards_;
  std::map<std::string, const TensorView*, std::less<>> tensors_;
};

struct LayerWeights {
  Array input_norm;                              // [hidden]
  Linear q, k, v, o;                             // [heads·head_dim, hidden], o: [hidden, heads·head_dim]
  Array q_norm, k_norm;                          // [head_dim], or empty
  Array attention_output_norm, mlp_output_norm;  // [hidden], or empty
  Array mlp_norm;                                // [hidden]
  Linear gate, up, down;                         // [intermediate, hidden], down: [hidden, intermediate]
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
