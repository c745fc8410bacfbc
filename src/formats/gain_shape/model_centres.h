// Centres of a whole model: contents of a file, shared by caches.
#pragma once

#include "core/memory.h"
#include "core/tensor_shape.h"
#include "formats/layered_model.h"
#include "kvq.h"

#include <cstdint>
#include <memory>

namespace kvq {

inline constexpr int32_t kMaxCentres = 256;
inline constexpr size_t kMaxCentresNote = 4096;

struct CentresShape {
  int32_t n_layers = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  kvq_rope rope = KVQ_ROPE_HALF;  // applied to key centres
  int32_t key_centres = 0;        // per head; 0: keys have none
  int32_t value_centres = 0;

  bool operator==(const CentresShape&) const = default;

  int32_t centres(Side side) const { return side == Side::kKeys ? key_centres : value_centres; }
};

/// One layer's centres; a vector is stored relative to its head's nearest centre.
struct LayerCentres {
  explicit LayerCentres(Allocator& allocator) : keys(allocator), values(allocator) {}

  Vector<float>& side(Side side) { return side == Side::kKeys ? keys : values; }
  const Vector<float>& side(Side side) const { return side == Side::kKeys ? keys : values; }

  Vector<float> keys;    // [kv_heads][key_centres][head_dim], before RoPE
  Vector<float> values;  // [kv_heads][value_centres][head_dim]
};

struct CentresLayer {
  std::shared_ptr<const LayerCentres> numbers;  // null: missing
  int64_t tokens = 0;                           // tokens in the training set
  // ‖x − c‖² / ‖x‖² with the nearest centre c; 0 without centres.
  double key_residual = 0.0;
  double value_residual = 0.0;
};

struct ModelCentres final : LayeredModel<CentresShape, CentresLayer> {
  using LayeredModel::LayeredModel;

 private:
  uint32_t compute_checksum() const override;
};

/// One array of a LayerCentres; FP16 in files.
struct CentresArray {
  const char* name;
  TensorShape shape;
  Side side;

  const Vector<float>& numbers_of(const LayerCentres& layer) const { return layer.side(side); }
};

/// Calls `use` with every array that centres of this shape have.
template <typename Use>
void for_each_array(const CentresShape& shape, const Use& use) {
  for (const Side side : {Side::kKeys, Side::kValues}) {
    if (shape.centres(side) == 0) continue;
    use(CentresArray{side == Side::kKeys ? "keys.centres" : "values.centres",
                     TensorShape{shape.kv_heads, shape.centres(side), shape.head_dim}, side});
  }
}

/// Throws `status` with a field's name, as in options and files, and its value. `prefix` precedes the name.
void check_centres_shape(const CentresShape& shape, kvq_status status, const char* prefix);

/// Throws `status` if an array has the wrong length, or a number is not finite in FP16.
void check_layer_centres(const CentresShape& shape, const LayerCentres& layer, int32_t index, kvq_status status);

/// Throws unless a cache of this shape can store keys, values or both relative to the centres.
void check_centres(const ModelCentres& centres, const CacheShape& cache, bool keys, bool values);

}  // namespace kvq
