#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/scratch_directory.h"

/// What distinguishes the layouts that the runner reads.
struct TinyLayout {
  std::string name;          // for messages
  std::string architecture;  // as in config.json
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;
  bool tied = false;
  int sliding_window = 0;
  int gemma = 0;  // 2 or 3; its first layer has the window
  int hidden = 24;
  int intermediate = 40;
};

/// One whose linear layers can be packed, with all biases or none.
TinyLayout packable_layout(bool biases);

/// One of each kind; the first has nothing special.
const std::vector<TinyLayout>& tiny_layouts();

/// A model of a few thousand random weights, and what it computes, in float64 and one token at a time.
class TinyModel {
 public:
  explicit TinyModel(TinyLayout layout);

  /// Write config.json and model.safetensors.
  void write(const ScratchDirectory& directory) const;

  /// Other numbers for a tensor.
  void replace(const std::string& name, std::vector<float> values);

  /// Logits of every token, `[tokens][vocabulary]`.
  std::vector<std::vector<double>> logits(const std::vector<int32_t>& tokens) const;

  static constexpr int kVocabulary = 50;

 private:
  struct Tensor {
    std::vector<int64_t> shape;
    std::vector<float> values;
  };
  using Vector = std::vector<double>;

  void add(const std::string& name, std::vector<int64_t> shape, double center, double spread);
  void add_linear(const std::string& name, int out, int in, bool bias);
  void add_norm(const std::string& name, int size, double spread);
  void add_layer(int index);
  int window_of(int layer) const { return layout_.gemma > 0 && layer > 0 ? 0 : layout_.sliding_window; }
  Vector linear(const std::string& name, const Vector& x) const;
  Vector rms_norm(const std::string& name, const Vector& x) const;
  /// Optional norm of each head, then rotation to `position`.
  Vector heads(const std::string& norm, Vector x, int position, double theta) const;
  Vector attend(const Vector& q, const std::vector<Vector>& keys, const std::vector<Vector>& values, int window) const;
  Vector attention(int index, const Vector& x, std::vector<Vector>& keys, std::vector<Vector>& values) const;
  Vector mlp(const std::string& layer, const Vector& x) const;

  TinyLayout layout_;
  std::map<std::string, Tensor> tensors_;
};
