// Centres and scales of a whole model: contents of a file, shared by caches.
#pragma once

#include "core/memory.h"
#include "core/rope.h"
#include "core/tensor_shape.h"
#include "formats/layered_model.h"
#include "kvq.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

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
  int32_t key_scales = 0;    // 1: keys are scaled before anything else
  int32_t value_scales = 0;  // 1: values are moved by an offset, then scaled, before anything else

  bool operator==(const CentresShape&) const = default;

  int32_t centres(Side side) const { return side == Side::kKeys ? key_centres : value_centres; }
  bool has_centres() const { return key_centres > 0 || value_centres > 0; }
  bool has_scales() const { return key_scales != 0 || value_scales != 0; }
};

/// What a checksum covers: without scales, what it did before there were any.
inline std::span<const std::byte> bytes_of_shape(const CentresShape& shape) {
  const size_t bytes = shape.has_scales() ? sizeof(shape) : offsetof(CentresShape, key_scales);
  return std::as_bytes(std::span(&shape, 1)).first(bytes);
}

/// One layer's centres and scales. A vector is stored relative to its head's nearest centre; centres are of scaled
/// vectors.
struct LayerCentres {
  explicit LayerCentres(Allocator& allocator)
      : keys(allocator), values(allocator), key_scales(allocator), value_scales(allocator), value_offsets(allocator) {}

  Vector<float>& side(Side side) { return side == Side::kKeys ? keys : values; }
  const Vector<float>& side(Side side) const { return side == Side::kKeys ? keys : values; }

  Vector<float> keys;           // [kv_heads][key_centres][head_dim], before RoPE
  Vector<float> values;         // [kv_heads][value_centres][head_dim]
  Vector<float> key_scales;     // [kv_heads][head_dim], of keys after RoPE: both channels of a pair alike
  Vector<float> value_scales;   // [kv_heads][head_dim]
  Vector<float> value_offsets;  // [kv_heads][head_dim], subtracted before scaling
};

/// How uneven a layer's channels are, the largest of all heads; and the squared error of scores (keys) and of outputs
/// (values) that codes with one gain a token make, relative to the least that scales can reach: means over heads.
struct ChannelSpread {
  double largest_offset = 0.0;  // of keys, over what varies around it
  double imbalance = 1.0;       // largest scale over the smallest
  double noise = 1.0;           // as the channels are
  double scaled_noise = 1.0;    // scaled
};

struct CentresLayer {
  std::shared_ptr<const LayerCentres> numbers;  // null: missing
  int64_t tokens = 0;                           // tokens in the training set
  // ‖x − c‖² / ‖x‖² with the nearest centre c; 0 without centres.
  double key_residual = 0.0;
  double value_residual = 0.0;
  ChannelSpread key_spread{};  // where there are scales
  ChannelSpread value_spread{};
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
  Vector<float> LayerCentres::*numbers;

  const Vector<float>& numbers_of(const LayerCentres& layer) const { return layer.*numbers; }
};

/// Calls `use` with every array that centres of this shape have.
template <typename Use>
void for_each_array(const CentresShape& shape, const Use& use) {
  for (const Side side : {Side::kKeys, Side::kValues}) {
    if (shape.centres(side) == 0) continue;
    use(CentresArray{side == Side::kKeys ? "keys.centres" : "values.centres",
                     TensorShape{shape.kv_heads, shape.centres(side), shape.head_dim},
                     side == Side::kKeys ? &LayerCentres::keys : &LayerCentres::values});
  }
  const TensorShape channels{shape.kv_heads, shape.head_dim};
  if (shape.key_scales != 0) use(CentresArray{"keys.scales", channels, &LayerCentres::key_scales});
  if (shape.value_scales == 0) return;
  use(CentresArray{"values.scales", channels, &LayerCentres::value_scales});
  use(CentresArray{"values.offsets", channels, &LayerCentres::value_offsets});
}

/// Throws `status` with a field's name, as in options and files, and its value. `prefix` precedes the name.
void check_centres_shape(const CentresShape& shape, kvq_status status, const char* prefix);

/// Throws `status` if an array has the wrong length, a number is not finite in FP16, a scale is not in
/// [kLeastScale, 1], or an offset exceeds kMaxValueOffset.
void check_layer_centres(const CentresShape& shape, const LayerCentres& layer, int32_t index, kvq_status status);

/// Throws unless a cache of this shape can scale keys and values. `option` names the centres.
void check_scales(const ModelCentres& centres, const CacheShape& cache, const char* option);

/// Throws unless both channels of every pair that a cache rotates have the same scale of keys.
void check_scaled_pairs(const ModelCentres& centres, const Rope& rope, const char* option);

/// Throws unless a cache of this shape can store keys, values or both relative to the centres.
void check_centres(const ModelCentres& centres, const CacheShape& cache, bool keys, bool values);

}  // namespace kvq
