// Data trained layer by layer for a model: contents of a file, shared by caches.
#pragma once

#include "core/checks.h"
#include "core/checksum.h"
#include "core/error.h"
#include "core/memory.h"
#include "formats/page_format.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace kvq {

/// The part of a shape that tells how to read numbers.
template <typename Shape>
std::span<const std::byte> bytes_of_shape(const Shape& shape) {
  return std::as_bytes(std::span(&shape, 1));
}

/// Incomplete during training: layers may be missing. `LayerOfModel` has its `numbers`, null if it is missing, and
/// for_each_array(shape, use) calls `use` with each of their arrays.
template <typename Shape, typename LayerOfModel>
struct LayeredModel : Trained {
  using Layer = LayerOfModel;

  LayeredModel(Allocator& allocator, const Shape& shape_)
      : shape(shape_), note(allocator), layers(static_cast<size_t>(shape_.n_layers), Layer{}, allocator) {}

  Shape shape;
  uint64_t model_id = 0;
  uint64_t seed = 0;
  String note;  // UTF-8 without NUL
  Vector<Layer> layers;

  int32_t layers_present() const {
    return static_cast<int32_t>(
        std::count_if(layers.begin(), layers.end(), [](const Layer& layer) { return layer.numbers != nullptr; }));
  }
  bool complete() const { return layers_present() == shape.n_layers; }
  /// Bytes of the numbers in memory.
  uint64_t bytes() const {
    uint64_t of_layer = 0;
    for_each_array(shape, [&](const auto& array) { of_layer += array.shape.elements() * sizeof(float); });
    return of_layer * static_cast<uint64_t>(layers_present());
  }
  /// Throws unless all layers are trained, for the model of a cache that has this as its option `option`.
  void check_for(const CacheShape& cache, const char* option) const {
    if (!complete()) {
      fail(KVQ_E_ARGUMENT, "options->%s has %d of %d layers: finish its training", option, layers_present(),
           shape.n_layers);
    }
    check_trained_for(option, "n_layers", shape.n_layers, cache.n_layers);
    check_trained_for(option, "kv_heads", shape.kv_heads, cache.kv_heads);
    check_trained_for(option, "head_dim", shape.head_dim, cache.head_dim);
    check_trained_for_model(option, model_id, cache.model_id);
  }

 protected:
  uint64_t checksum_of_numbers() const {
    // In another shape the same numbers have another meaning.
    static_assert(std::has_unique_object_representations_v<Shape>);
    uint64_t sum = kvq::checksum(bytes_of_shape(shape));
    for (const Layer& layer : layers) {
      for_each_array(shape, [&](const auto& array) {
        sum = kvq::checksum(std::as_bytes(std::span<const float>(array.numbers_of(*layer.numbers))), sum);
      });
    }
    return sum;
  }
};

}  // namespace kvq
