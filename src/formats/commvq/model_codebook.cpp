#include "formats/commvq/model_codebook.h"

#include "core/checks.h"
#include "core/error.h"
#include "core/float16.h"
#include "core/limits.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace kvq {
namespace {

constexpr int32_t kMaxCodes = 256;
constexpr int32_t kMaxValueBits = 2;
constexpr int32_t kMaxHidden = kMaxKvHeads * kMaxTrainedDim;
constexpr double kScalarBits = 16.0;  // FP16 norm or scale

}  // namespace

uint32_t ModelCodebook::compute_checksum() const {
  const uint64_t sum = checksum_of_numbers();
  return static_cast<uint32_t>(sum ^ sum >> 32U);
}

double key_bits(const CodebookShape& shape) {
  if (shape.keys.stages == 0) return 0.0;
  const int32_t heads = shape.keys.norms == Scope::kHead ? 1 : shape.kv_heads;
  const auto index_bits = std::countr_zero(static_cast<uint32_t>(shape.keys.codes));
  // Two indices per stage for the 2·group scalars of a group.
  return static_cast<double>(shape.keys.stages * index_bits) / shape.keys.group +
         kScalarBits / (heads * shape.head_dim);
}

double value_bits(const CodebookShape& shape) {
  return shape.values.bits == 0 ? 0.0 : shape.values.bits + kScalarBits / shape.width();
}

void check_codebook_shape(const CodebookShape& shape, kvq_status status, const char* prefix) {
  check_model_shape(shape.n_layers, shape.kv_heads, shape.head_dim, status, prefix);
  const auto check = [&](int32_t value, int32_t low, int32_t high, const char* field) {
    check_range(value, low, high, status, prefix, field);
  };
  check(shape.pairing, KVQ_ROPE_HALF, KVQ_ROPE_INTERLEAVED, "rope");
  check(shape.keys.stages, 0, kMaxKeyStages, "key_stages");
  check(shape.keys.codes, 2, kMaxCodes, "key_codes");
  if (!std::has_single_bit(static_cast<uint32_t>(shape.keys.codes))) {
    fail(status, "%skey_codes is %d, must be a power of two", prefix, shape.keys.codes);
  }
  check(shape.keys.group, 1, shape.pairs(), "key_group");
  if (shape.pairs() % shape.keys.group != 0) {
    fail(status, "%skey_group is %d, must divide head_dim / 2, %d", prefix, shape.keys.group, shape.pairs());
  }
  check(static_cast<int32_t>(shape.keys.norms), KVQ_SCOPE_LAYER, KVQ_SCOPE_HEAD, "key_norms");
  check(shape.values.bits, 0, kMaxValueBits, "value_bits");
  check(static_cast<int32_t>(shape.values.scope), KVQ_SCOPE_LAYER, KVQ_SCOPE_HEAD, "value_scope");
  const bool network = shape.values.proposal == ValueProposal::kNetwork;
  check(static_cast<int32_t>(shape.values.proposal), KVQ_VALUES_LEAST_SQUARES, KVQ_VALUES_NETWORK, "value_proposal");
  check(shape.values.hidden, network ? 1 : 0, network ? kMaxHidden : 0, "value_hidden");
  if (network && shape.values.bits == 0) {
    fail(status, "%svalue_bits is 0: a network has no bits to propose", prefix);
  }
  if (shape.keys.stages == 0 && shape.values.bits == 0) {
    fail(status, "%skey_stages and value_bits are both 0: there is nothing to encode", prefix);
  }
}

void check_layer_codebook(const CodebookShape& shape, const LayerCodebook& layer, int32_t index, kvq_status status) {
  for_each_array(shape, [&](const CodebookArray& array) {
    check_numbers(layer.*array.numbers, array.shape.elements(), array.dtype, status, "layers", index, array.name);
  });
  if (shape.values.bits == 0) return;
  const auto bad = std::find_if_not(layer.channel_scale.begin(), layer.channel_scale.end(),
                                    [](float scale) { return scale > 0.0F; });
  if (bad == layer.channel_scale.end()) return;
  fail(status, "layers.%d.values.channel_scale: number %zu is %g, must be positive", index,
       static_cast<size_t>(bad - layer.channel_scale.begin()), static_cast<double>(*bad));
}

void round_as_in_files(const CodebookShape& shape, LayerCodebook& layer) {
  for_each_array(shape, [&](const CodebookArray& array) {
    if (array.dtype != KVQ_F16) return;
    for (float& value : layer.*array.numbers) value = from_float16(to_float16(value));
  });
}

}  // namespace kvq
