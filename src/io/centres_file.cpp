#include "io/centres_file.h"

#include "io/metadata_fields.h"

namespace kvq::io {
namespace {

constexpr std::string_view kCentresType = "kvq.centres";

CentresShape read_shape(const MetadataFields& fields, const TrainedHeader& header) {
  const CentresShape shape{.n_layers = header.n_layers,
                           .kv_heads = header.kv_heads,
                           .head_dim = header.head_dim,
                           .rope = header.rope,
                           .key_centres = fields.number<int32_t>("key_centres"),
                           .value_centres = fields.number<int32_t>("value_centres")};
  check_centres_shape(shape, KVQ_E_FORMAT, "centres: metadata ");
  return shape;
}

ModelCentres::Layer read_layer(Allocator& allocator, const MetadataFields& fields, const CentresShape& shape,
                               int32_t index) {
  ModelCentres::Layer layer;
  layer.tokens = fields.number<int64_t>(LayerKey(index, "tokens").c_str());
  if (layer.tokens < 0) fields.refuse(LayerKey(index, "tokens").c_str(), "not negative");
  layer.key_residual = fields.amount(LayerKey(index, "key_residual").c_str());
  layer.value_residual = fields.amount(LayerKey(index, "value_residual").c_str());
  const auto numbers = std::allocate_shared<LayerCentres>(StlAllocator<LayerCentres>(allocator), allocator);
  for_each_array(shape, [&](const CentresArray& array) {
    fields.read_tensor(LayerKey(index, array.name).c_str(), KVQ_F16, array.shape, numbers->side(array.side));
  });
  check_layer_centres(shape, *numbers, index, KVQ_E_FORMAT);
  layer.numbers = numbers;
  return layer;
}

}  // namespace

ModelCentres read_centres(Allocator& allocator, std::span<const std::byte> bytes) {
  const SafetensorsFile file(allocator, bytes);
  const MetadataFields fields(file, "centres");
  const TrainedHeader header = read_header(fields, kCentresType, kCentresFileVersion, KVQ_ROPE_NONE, kMaxCentresNote);
  ModelCentres centres(allocator, read_shape(fields, header));
  centres.model_id = header.model_id;
  centres.seed = header.seed;
  centres.note = header.note;
  size_t arrays = 0;
  for_each_array(centres.shape, [&](const CentresArray& /*array*/) { ++arrays; });
  for (int32_t i = 0; i < centres.shape.n_layers; ++i) {
    if (!fields.has(LayerKey(i, "tokens").c_str())) continue;
    centres.layers[static_cast<size_t>(i)] = read_layer(allocator, fields, centres.shape, i);
  }
  fields.check_tensor_count(arrays * static_cast<size_t>(centres.layers_present()));
  return centres;
}

SafetensorsWriter centres_file(Allocator& allocator, const ModelCentres& centres) {
  SafetensorsWriter file(allocator);
  const CentresShape& shape = centres.shape;
  add_header(file, kCentresType, kCentresFileVersion,
             {.n_layers = shape.n_layers,
              .kv_heads = shape.kv_heads,
              .head_dim = shape.head_dim,
              .rope = shape.rope,
              .model_id = centres.model_id,
              .seed = centres.seed,
              .note = centres.note});
  file.add_metadata("key_centres", NumberText(shape.key_centres));
  file.add_metadata("value_centres", NumberText(shape.value_centres));
  for (int32_t i = 0; i < shape.n_layers; ++i) {
    const ModelCentres::Layer& layer = centres.layers[static_cast<size_t>(i)];
    if (layer.numbers == nullptr) continue;
    file.add_metadata(LayerKey(i, "tokens").c_str(), NumberText(layer.tokens));
    file.add_metadata(LayerKey(i, "key_residual").c_str(), NumberText(layer.key_residual));
    file.add_metadata(LayerKey(i, "value_residual").c_str(), NumberText(layer.value_residual));
    for_each_array(shape, [&](const CentresArray& array) {
      file.add_tensor(LayerKey(i, array.name).c_str(), KVQ_F16, array.shape, layer.numbers->side(array.side));
    });
  }
  file.finish();
  return file;
}

}  // namespace kvq::io
