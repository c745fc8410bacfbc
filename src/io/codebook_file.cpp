#include "io/codebook_file.h"

#include "core/error.h"
#include "io/quoted.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace kvq::io {
namespace {

constexpr std::string_view kType = "kvq.codebook";
constexpr const char* kValueProposal = "value_proposal";
constexpr const char* kValueHidden = "value_hidden";
constexpr std::array<const char*, 2> kScopeNames = {"layer", "head"};           // by Scope
constexpr std::array<const char*, 2> kProposalNames = {"linear", "network"};    // by ValueProposal
constexpr std::array<const char*, 3> kRopeNames = {"", "half", "interleaved"};  // by kvq_rope

/// A number as text: the shortest that reads back as the same number.
class NumberText {
 public:
  template <typename Number, typename... Format>
  explicit NumberText(Number value, Format... format) {
    const auto [end, code] = std::to_chars(text_.data(), text_.data() + text_.size(), value, format...);
    size_ = static_cast<size_t>(end - text_.data());
  }
  operator std::string_view() const { return {text_.data(), size_}; }

 private:
  std::array<char, 40> text_{};
  size_t size_ = 0;
};

constexpr int kHexadecimal = 16;

/// Numbers with a space between them.
String list_text(Allocator& allocator, std::span<const double> values) {
  String text{StlAllocator<char>(allocator)};
  for (const double value : values) {
    if (!text.empty()) text += ' ';
    text += std::string_view(NumberText(value));
  }
  return text;
}

/// "layers.<index>.<field>".
class LayerKey {
 public:
  LayerKey(int32_t index, const char* field) {
    std::snprintf(text_.data(), text_.size(), "layers.%d.%s", index, field);
  }
  const char* c_str() const { return text_.data(); }

 private:
  std::array<char, 64> text_{};
};

/// The metadata of a file, read field by field.
class Fields {
 public:
  explicit Fields(const SafetensorsFile& file) : file_(file) {}

  std::string_view text(const char* key) const {
    const String* value = file_.metadata(key);
    if (value == nullptr) fail(KVQ_E_FORMAT, "codebook: metadata %s is missing", key);
    return *value;
  }
  template <typename Number, typename... Format>
  Number number(const char* key, Format... format) const {
    const std::string_view spelling = text(key);
    Number value{};
    const char* end = spelling.data() + spelling.size();
    const auto [stop, code] = std::from_chars(spelling.data(), end, value, format...);
    if (code != std::errc() || stop != end) refuse(key, "a number");
    return value;
  }
  double error(const char* key) const {
    const auto value = number<double>(key);
    if (!std::isfinite(value) || value < 0.0) refuse(key, "finite and not negative");
    return value;
  }
  /// Numbers with a space between them.
  void errors(const char* key, std::span<double> values) const {
    std::string_view rest = text(key);
    for (double& value : values) {
      const auto [stop, code] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
      const bool last = &value == &values.back();
      rest.remove_prefix(static_cast<size_t>(stop - rest.data()));
      if (code != std::errc() || !std::isfinite(value) || value < 0.0 || (!last && !rest.starts_with(' '))) break;
      if (last && rest.empty()) return;
      if (!last) rest.remove_prefix(1);
    }
    if (values.empty() && rest.empty()) return;
    refuse(key, "one number for each stage, finite and not negative");
  }
  template <size_t n>
  int32_t choice(const char* key, const std::array<const char*, n>& names, const char* expected) const {
    const std::string_view spelling = text(key);
    for (size_t i = 0; i < n; ++i) {
      if (!spelling.empty() && spelling == names[i]) return static_cast<int32_t>(i);
    }
    refuse(key, expected);
  }
  bool has(const char* key) const { return file_.metadata(key) != nullptr; }

  [[noreturn]] void refuse(const char* key, const char* expected) const {
    fail(KVQ_E_FORMAT, "codebook: metadata %s is '%s', expected %s", key, Quoted(text(key)).c_str(), expected);
  }

 private:
  const SafetensorsFile& file_;
};

CodebookShape read_shape(const Fields& fields) {
  CodebookShape shape;
  shape.n_layers = fields.number<int32_t>("n_layers");
  shape.kv_heads = fields.number<int32_t>("kv_heads");
  shape.head_dim = fields.number<int32_t>("head_dim");
  shape.pairing = fields.choice("rope", kRopeNames, "half or interleaved");
  shape.keys.stages = fields.number<int32_t>("key_stages");
  shape.keys.codes = fields.number<int32_t>("key_codes");
  shape.keys.group = fields.number<int32_t>("key_group");
  shape.keys.norms = static_cast<Scope>(fields.choice("key_norms", kScopeNames, "layer or head"));
  shape.values.bits = fields.number<int32_t>("value_bits");
  shape.values.scope = static_cast<Scope>(fields.choice("value_scope", kScopeNames, "layer or head"));
  if (fields.has(kValueProposal)) {  // files of linear proposals do not say so
    shape.values.proposal =
        static_cast<ValueProposal>(fields.choice(kValueProposal, kProposalNames, "linear or network"));
  }
  if (shape.values.proposal == ValueProposal::kNetwork || fields.has(kValueHidden)) {
    shape.values.hidden = fields.number<int32_t>(kValueHidden);
  }
  check_codebook_shape(shape, KVQ_E_FORMAT, "codebook: metadata ");
  return shape;
}

void read_array(const SafetensorsFile& file, int32_t index, const CodebookArray& array, LayerCodebook& layer) {
  const LayerKey name(index, array.name);
  const TensorView* tensor = file.find(name.c_str());
  if (tensor == nullptr) fail(KVQ_E_FORMAT, "codebook: tensor %s is missing", name.c_str());
  if (tensor->dtype != array.dtype) {
    fail(KVQ_E_FORMAT, "codebook: tensor %s: dtype is %s, must be %s", name.c_str(), dtype_name(tensor->dtype),
         dtype_name(array.dtype));
  }
  if (!(tensor->shape == array.shape)) {
    fail(KVQ_E_FORMAT, "codebook: tensor %s: shape is not the one that the metadata demand: %zu numbers, not %zu",
         name.c_str(), tensor->shape.elements(), array.shape.elements());
  }
  Vector<float>& numbers = layer.*array.numbers;
  numbers.resize(array.shape.elements());
  tensor->read(numbers);
}

ModelCodebook::Layer read_layer(Allocator& allocator, const SafetensorsFile& file, const CodebookShape& shape,
                                int32_t index) {
  const Fields fields(file);
  ModelCodebook::Layer layer;
  layer.tokens = fields.number<int64_t>(LayerKey(index, "tokens").c_str());
  if (layer.tokens < 0) fields.refuse(LayerKey(index, "tokens").c_str(), "not negative");
  fields.errors(LayerKey(index, "key_errors").c_str(),
                std::span(layer.key_errors).first(static_cast<size_t>(shape.keys.stages)));
  layer.value_error = fields.error(LayerKey(index, "value_error").c_str());
  const auto numbers = std::allocate_shared<LayerCodebook>(StlAllocator<LayerCodebook>(allocator), allocator);
  for_each_array(shape, [&](const CodebookArray& array) { read_array(file, index, array, *numbers); });
  check_layer_codebook(shape, *numbers, index, KVQ_E_FORMAT);
  layer.numbers = numbers;
  return layer;
}

void check_type(const SafetensorsFile& file) {
  const String* type = file.metadata("type");
  if (type == nullptr || *type != kType) fail(KVQ_E_FORMAT, "codebook: metadata type is not '%s'", kType.data());
  const auto version = Fields(file).number<int32_t>("version");
  if (version == kCodebookFileVersion) return;
  fail(KVQ_E_MISMATCH, "codebook: the file has version %d, this library reads version %d", version,
       kCodebookFileVersion);
}

}  // namespace

ModelCodebook read_codebook(Allocator& allocator, std::span<const std::byte> bytes) {
  const SafetensorsFile file(allocator, bytes);
  check_type(file);
  const Fields fields(file);
  ModelCodebook codebook(allocator, read_shape(fields));
  codebook.model_id = fields.number<uint64_t>("model_id", kHexadecimal);
  codebook.seed = fields.number<uint64_t>("seed");
  codebook.note = fields.text("note");
  if (codebook.note.size() > kMaxCodebookNote || codebook.note.find('\0') != String::npos) {
    fields.refuse("note", "a shorter text without NUL");
  }
  size_t arrays = 0;
  for_each_array(codebook.shape, [&](const CodebookArray& /*array*/) { ++arrays; });
  for (int32_t i = 0; i < codebook.shape.n_layers; ++i) {
    if (!fields.has(LayerKey(i, "tokens").c_str())) continue;
    codebook.layers[static_cast<size_t>(i)] = read_layer(allocator, file, codebook.shape, i);
  }
  const size_t expected = arrays * static_cast<size_t>(codebook.layers_present());
  if (file.tensors().size() != expected) {
    fail(KVQ_E_FORMAT, "codebook: the file has %zu tensors, its metadata describe %zu", file.tensors().size(),
         expected);
  }
  return codebook;
}

SafetensorsWriter codebook_file(Allocator& allocator, const ModelCodebook& codebook) {
  SafetensorsWriter file(allocator);
  const CodebookShape& shape = codebook.shape;
  file.add_metadata("type", kType);
  file.add_metadata("version", NumberText(kCodebookFileVersion));
  file.add_metadata("n_layers", NumberText(shape.n_layers));
  file.add_metadata("kv_heads", NumberText(shape.kv_heads));
  file.add_metadata("head_dim", NumberText(shape.head_dim));
  file.add_metadata("rope", kRopeNames[static_cast<size_t>(shape.pairing)]);
  file.add_metadata("key_stages", NumberText(shape.keys.stages));
  file.add_metadata("key_codes", NumberText(shape.keys.codes));
  file.add_metadata("key_group", NumberText(shape.keys.group));
  file.add_metadata("key_norms", kScopeNames[static_cast<size_t>(shape.keys.norms)]);
  file.add_metadata("value_bits", NumberText(shape.values.bits));
  file.add_metadata("value_scope", kScopeNames[static_cast<size_t>(shape.values.scope)]);
  if (shape.values.proposal == ValueProposal::kNetwork) {
    file.add_metadata(kValueProposal, kProposalNames[static_cast<size_t>(shape.values.proposal)]);
    file.add_metadata(kValueHidden, NumberText(shape.values.hidden));
  }
  file.add_metadata("model_id", NumberText(codebook.model_id, kHexadecimal));
  file.add_metadata("seed", NumberText(codebook.seed));
  file.add_metadata("note", codebook.note);
  for (int32_t i = 0; i < shape.n_layers; ++i) {
    const ModelCodebook::Layer& layer = codebook.layers[static_cast<size_t>(i)];
    if (layer.numbers == nullptr) continue;
    file.add_metadata(LayerKey(i, "tokens").c_str(), NumberText(layer.tokens));
    file.add_metadata(LayerKey(i, "key_errors").c_str(),
                      list_text(allocator, std::span(layer.key_errors).first(static_cast<size_t>(shape.keys.stages))));
    file.add_metadata(LayerKey(i, "value_error").c_str(), NumberText(layer.value_error));
    for_each_array(shape, [&](const CodebookArray& array) {
      file.add_tensor(LayerKey(i, array.name).c_str(), array.dtype, array.shape, *layer.numbers.*array.numbers);
    });
  }
  file.finish();
  return file;
}

void check_note(std::string_view note, const char* argument) {
  if (note.size() > kMaxCodebookNote) {
    fail(KVQ_E_ARGUMENT, "%s is %zu bytes long, at most %zu are kept", argument, note.size(), kMaxCodebookNote);
  }
  try {
    static_cast<void>(nlohmann::json(note).dump());
  } catch (const nlohmann::json::exception&) {
    fail(KVQ_E_ARGUMENT, "%s is not UTF-8: '%s'", argument, Quoted(note).c_str());
  }
}

}  // namespace kvq::io
