#include "api/trained_handle.h"
#include "io/trained_files.h"

#include <algorithm>

using namespace kvq;
using namespace kvq::api;

namespace {

/// Mean errors and fewest tokens of the layers that are present.
void add_figures(const ModelCodebook& codebook, kvq_codebook_info& info) {
  info.layers_present = codebook.layers_present();
  for (const ModelCodebook::Layer& layer : codebook.layers) {
    if (layer.numbers == nullptr) continue;
    info.key_error += codebook.key_error(layer);
    info.value_error += layer.value_error;
    info.tokens = info.tokens == 0 ? layer.tokens : std::min(info.tokens, layer.tokens);
  }
  if (info.layers_present == 0) return;
  info.key_error /= info.layers_present;
  info.value_error /= info.layers_present;
}

kvq_codebook_info describe(const ModelCodebook& codebook) {
  const CodebookShape& shape = codebook.shape;
  kvq_codebook_info info{};
  info.n_layers = shape.n_layers;
  info.kv_heads = shape.kv_heads;
  info.head_dim = shape.head_dim;
  info.rope = shape.pairing;
  info.key_stages = shape.keys.stages;
  info.key_codes = shape.keys.codes;
  info.key_group = shape.keys.group;
  info.key_norms = static_cast<kvq_scope>(shape.keys.norms);
  info.value_bits = shape.values.bits;
  info.value_scope = static_cast<kvq_scope>(shape.values.scope);
  info.key_true_bits = key_bits(shape);
  info.value_true_bits = value_bits(shape);
  info.seed = codebook.seed;
  info.model_id = codebook.model_id;
  info.bytes = codebook.bytes();
  info.note = codebook.note.c_str();
  add_figures(codebook, info);
  return info;
}

kvq_codebook_layer_info describe_layer(const ModelCodebook& codebook, int32_t index) {
  const ModelCodebook::Layer& layer = codebook.layers[static_cast<size_t>(index)];
  kvq_codebook_layer_info info{};
  info.present = layer.numbers != nullptr ? 1 : 0;
  info.tokens = layer.tokens;
  info.key_error = codebook.key_error(layer);
  info.value_error = layer.value_error;
  std::copy(layer.key_errors.begin(), layer.key_errors.end(), info.key_stage_errors);
  return info;
}

}  // namespace

kvq_status kvq_codebook_load(kvq_context* context, const void* buffer, size_t size, kvq_codebook** result,
                             kvq_error* error) {
  return load_trained(context, buffer, size, result, error, io::read_codebook);
}

kvq_status kvq_codebook_save(const kvq_codebook* codebook, void* buffer, size_t capacity, size_t* size,
                             kvq_error* error) {
  return save_trained(codebook, "codebook", buffer, capacity, size, error, io::codebook_file);
}

kvq_status kvq_codebook_describe(const kvq_codebook* codebook, kvq_codebook_info* info, kvq_error* error) {
  return guarded(error, [&] {
    require(codebook, "codebook");
    write_struct(info, describe(*codebook->shared), "info");
  });
}

kvq_status kvq_codebook_describe_layer(const kvq_codebook* codebook, int32_t layer, kvq_codebook_layer_info* info,
                                       kvq_error* error) {
  return guarded(error, [&] {
    require(codebook, "codebook");
    require_range(layer, 0, codebook->shared->shape.n_layers - 1, "layer");
    write_struct(info, describe_layer(*codebook->shared, layer), "info");
  });
}

void kvq_codebook_destroy(kvq_codebook* codebook) { destroy(codebook); }
