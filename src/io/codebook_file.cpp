#include "io/codebook_file.h"

#include "io/metadata_fields.h"

#include <array>

namespace kvq::io {
namespace {

constexpr std::string_view kCodebookType = "kvq.codebook";
constexpr const char* kValueProposal = "value_proposal";
constexpr const char* kValueHidden = "value_hidden";
constexpr std::array<const char*, 2> kScopeNames = {"layer", "head"};         // by Scope
constexpr std::array<const char*, 2> kProposalNames = {"linear", "network"};  // by ValueProposal

CodebookShape read_codebook_shape(const MetadataFields& fields, const TrainedHeader& header) {
  CodebookShape shape;
  shape.n_layers = header.n_layers;
  shape.kv_heads = header.kv_heads;
  shape.head_dim = header.head_dim;
  shape.pairing = header.rope;
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

ModelCodebook::Layer read_layer(Allocator& allocator, const MetadataFields& fields, const CodebookShape& shape,
                                int32_t index) {
  ModelCodebook::Layer layer;
  layer.tokens = fields.number<int64_t>(LayerKey(index, "tokens").c_str());
  if (layer.tokens < 0) fields.refuse(LayerKey(index, "tokens").c_str(), "not negative");
  fields.amounts(LayerKey(index, "key_errors").c_str(),
                 std::span(layer.key_errors).first(static_cast<size_t>(shape.keys.stages)),
                 "one number for each stage, finite and not negative");
  layer.value_error = fields.amount(LayerKey(index, "value_error").c_str());
  const auto numbers = std::allocate_shared<LayerCodebook>(StlAllocator<LayerCodebook>(allocator), allocator);
  for_each_array(shape, [&](const CodebookArray& array) {
    fields.read_tensor(LayerKey(index, array.name).c_str(), array.dtype, array.shape, *numbers.*array.numbers);
  });
  check_layer_codebook(shape, *numbers, index, KVQ_E_FORMAT);
  layer.numbers = numbers;
  return layer;
}

}  // namespace

ModelCodebook read_codebook(Allocator& allocator, std::span<const std::byte> bytes) {
  const SafetensorsFile file(allocator, bytes);
  const MetadataFields fields(file, "codebook");
  const TrainedHeader header =
      read_header(fields, kCodebookType, kCodebookFileVersion, KVQ_ROPE_HALF, kMaxCodebookNote);
  ModelCodebook codebook(allocator, read_codebook_shape(fields, header));
  codebook.model_id = header.model_id;
  codebook.seed = header.seed;
  codebook.note = header.note;
  size_t arrays = 0;
  for_each_array(codebook.shape, [&](const CodebookArray& /*array*/) { ++arrays; });
  for (int32_t i = 0; i < codebook.shape.n_layers; ++i) {
    if (!fields.has(LayerKey(i, "tokens").c_str())) continue;
    codebook.layers[static_cast<size_t>(i)] = read_layer(allocator, fields, codebook.shape, i);
  }
  fields.check_tensor_count(arrays * static_cast<size_t>(codebook.layers_present()));
  return codebook;
}

SafetensorsWriter codebook_file(Allocator& allocator, const ModelCodebook& codebook) {
  SafetensorsWriter file(allocator);
  const CodebookShape& shape = codebook.shape;
  add_header(file, kCodebookType, kCodebookFileVersion,
             {.n_layers = shape.n_layers,
              .kv_heads = shape.kv_heads,
              .head_dim = shape.head_dim,
              .rope = shape.pairing,
              .model_id = codebook.model_id,
              .seed = codebook.seed,
              .note = codebook.note});
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

}  // namespace kvq::io
