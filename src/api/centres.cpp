#include "api/trained_handle.h"
#include "io/trained_files.h"

#include <algorithm>

using namespace kvq;
using namespace kvq::api;

namespace {

/// Mean residuals and fewest tokens of the layers that are present.
void add_figures(const ModelCentres& centres, kvq_centres_info& info) {
  info.layers_present = centres.layers_present();
  for (const ModelCentres::Layer& layer : centres.layers) {
    if (layer.numbers == nullptr) continue;
    info.key_residual += layer.key_residual;
    info.value_residual += layer.value_residual;
    info.tokens = info.tokens == 0 ? layer.tokens : std::min(info.tokens, layer.tokens);
  }
  if (info.layers_present == 0) return;
  info.key_residual /= info.layers_present;
  info.value_residual /= info.layers_present;
}

kvq_centres_info describe(const ModelCentres& centres) {
  const CentresShape& shape = centres.shape;
  kvq_centres_info info{};
  info.n_layers = shape.n_layers;
  info.kv_heads = shape.kv_heads;
  info.head_dim = shape.head_dim;
  info.rope = shape.rope;
  info.key_centres = shape.key_centres;
  info.value_centres = shape.value_centres;
  info.seed = centres.seed;
  info.model_id = centres.model_id;
  info.bytes = centres.bytes();
  info.note = centres.note.c_str();
  add_figures(centres, info);
  return info;
}

kvq_centres_layer_info describe_layer(const ModelCentres& centres, int32_t index) {
  const ModelCentres::Layer& layer = centres.layers[static_cast<size_t>(index)];
  kvq_centres_layer_info info{};
  info.present = layer.numbers != nullptr ? 1 : 0;
  info.tokens = layer.tokens;
  info.key_residual = layer.key_residual;
  info.value_residual = layer.value_residual;
  return info;
}

}  // namespace

kvq_status kvq_centres_load(kvq_context* context, const void* buffer, size_t size, kvq_centres** result,
                            kvq_error* error) {
  return load_trained(context, buffer, size, result, error, io::read_centres);
}

kvq_status kvq_centres_save(const kvq_centres* centres, void* buffer, size_t capacity, size_t* size, kvq_error* error) {
  return save_trained(centres, "centres", buffer, capacity, size, error, io::centres_file);
}

kvq_status kvq_centres_describe(const kvq_centres* centres, kvq_centres_info* info, kvq_error* error) {
  return guarded(error, [&] {
    require(centres, "centres");
    write_struct(info, describe(*centres->shared), "info");
  });
}

kvq_status kvq_centres_describe_layer(const kvq_centres* centres, int32_t layer, kvq_centres_layer_info* info,
                                      kvq_error* error) {
  return guarded(error, [&] {
    require(centres, "centres");
    require_range(layer, 0, centres->shared->shape.n_layers - 1, "layer");
    write_struct(info, describe_layer(*centres->shared, layer), "info");
  });
}

void kvq_centres_destroy(kvq_centres* centres) { destroy(centres); }
