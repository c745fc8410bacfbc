// Codebooks of a whole model: contents of a file, shared by caches.
#pragma once

#include "core/memory.h"
#include "core/tensor_shape.h"
#include "formats/commvq/codebook.h"
#include "formats/layered_model.h"
#include "kvq.h"

#include <array>
#include <memory>

namespace kvq {

/// ‖x̂ − x‖² / ‖x‖² of a layer's keys after each stage of codes; 0 beyond the last.
using KeyErrors = std::array<double, kMaxKeyStages>;

struct CodebookLayer {
  std::shared_ptr<const LayerCodebook> numbers;  // null: missing
  int64_t tokens = 0;                            // tokens in the training set
  KeyErrors key_errors{};
  double value_error = 0.0;  // ‖x̂ − x‖² / ‖x‖²; 0 without codes
};

struct ModelCodebook final : LayeredModel<CodebookShape, CodebookLayer> {
  using LayeredModel::LayeredModel;

  uint64_t scales = 0;  // checksum of those that keys and values had in training; 0: none

  /// Error after all stages; 0 without codes.
  double key_error(const Layer& layer) const {
    return shape.keys.stages > 0 ? layer.key_errors[static_cast<size_t>(shape.keys.stages - 1)] : 0.0;
  }

 private:
  uint32_t compute_checksum() const override;
};

inline constexpr size_t kMaxCodebookNote = 4096;

/// Effective bits of a key scalar and a value scalar: codes plus the FP16 norm or scale of each token.
double key_bits(const CodebookShape& shape);
double value_bits(const CodebookShape& shape);

/// One array of a LayerCodebook. Files store the large ones in FP16: its rounding is 2⁻¹¹ of a number, while codes
/// themselves miss keys and values by a tenth and more.
struct CodebookArray {
  const char* name;
  kvq_dtype dtype;  // KVQ_F32 or KVQ_F16
  TensorShape shape;
  Vector<float> LayerCodebook::*numbers;

  const Vector<float>& numbers_of(const LayerCodebook& layer) const { return layer.*numbers; }
};

/// Calls `use` with the arrays of the network that proposes bits of values.
template <typename Use>
void for_each_network_array(const CodebookShape& shape, const Use& use) {
  const int32_t vectors = shape.vectors();
  const int32_t width = shape.width();
  const int32_t hidden = shape.values.hidden;
  const int64_t logits = int64_t{2} * shape.code_bits();
  const TensorShape norm{vectors, width};
  use(CodebookArray{"values.network.norm_gain", KVQ_F32, norm, &LayerCodebook::network_norm_gain});
  use(CodebookArray{"values.network.norm_bias", KVQ_F32, norm, &LayerCodebook::network_norm_bias});
  use(CodebookArray{"values.network.first", KVQ_F16, TensorShape{vectors, hidden, width},
                    &LayerCodebook::network_first});
  use(CodebookArray{"values.network.first_bias", KVQ_F32, TensorShape{vectors, hidden},
                    &LayerCodebook::network_first_bias});
  use(CodebookArray{"values.network.second", KVQ_F16, TensorShape{vectors, logits, hidden},
                    &LayerCodebook::network_second});
  use(CodebookArray{"values.network.second_bias", KVQ_F32, TensorShape{vectors, logits},
                    &LayerCodebook::network_second_bias});
}

/// Calls `use` with the arrays of values.
template <typename Use>
void for_each_value_array(const CodebookShape& shape, const Use& use) {
  const int32_t vectors = shape.vectors();
  const TensorShape codes{vectors, shape.code_bits(), shape.width()};
  use(CodebookArray{"values.channel_scale", KVQ_F32, TensorShape{shape.kv_heads, shape.head_dim},
                    &LayerCodebook::channel_scale});
  use(CodebookArray{"values.codes", KVQ_F16, codes, &LayerCodebook::value_codes});
  use(CodebookArray{"values.offset", KVQ_F32, TensorShape{vectors, shape.width()}, &LayerCodebook::value_offset});
  if (shape.values.proposal == ValueProposal::kNetwork) return for_each_network_array(shape, use);
  use(CodebookArray{"values.proposal", KVQ_F16, codes, &LayerCodebook::proposal});
  use(CodebookArray{"values.proposal_bias", KVQ_F32, TensorShape{vectors, shape.code_bits()},
                    &LayerCodebook::proposal_bias});
}

/// Calls `use` with every array that codebooks of this shape have.
template <typename Use>
void for_each_array(const CodebookShape& shape, const Use& use) {
  const KeyCodebookShape& keys = shape.keys;
  if (keys.stages > 0) {
    use(CodebookArray{"keys.codes", KVQ_F16,
                      TensorShape{shape.kv_heads, shape.groups(), keys.stages, keys.codes, keys.group, 2},
                      &LayerCodebook::key_codes});
  }
  if (shape.values.bits > 0) for_each_value_array(shape, use);
}

/// Throws `status` with a field's name, as in options and files, and its value. `prefix` precedes the name.
void check_codebook_shape(const CodebookShape& shape, kvq_status status, const char* prefix);

/// Throws `status` if an array has the wrong length, or a number is unusable or cannot be written.
void check_layer_codebook(const CodebookShape& shape, const LayerCodebook& layer, int32_t index, kvq_status status);

/// Round every number to the value read back from a file.
void round_as_in_files(const CodebookShape& shape, LayerCodebook& layer);

}  // namespace kvq
