#include "commvq/device_codebook.h"

#include "core/error.h"
#include "core/float16.h"
#include "device/cuda_error.h"
#include "device/device.h"
#include "formats/commvq/commvq.h"
#include "formats/commvq/context.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace kvq::cuda {
namespace {

using Float16s = Vector<uint16_t>;

/// Exact: files hold these numbers in FP16, too.
Float16s to_float16s(Allocator& allocator, const Vector<float>& numbers) {
  Float16s float16(numbers.size(), allocator);
  std::transform(numbers.begin(), numbers.end(), float16.begin(), to_float16);
  return float16;
}

/// [parts][codes][group]{re, im} as [parts][group]{re[codes], im[codes]}.
Float16s planes_of(Allocator& allocator, const Float16s& rows, size_t codes, size_t group) {
  Float16s planes(rows.size(), allocator);
  const size_t part = 2 * codes * group;
  for (size_t i = 0; i < rows.size(); ++i) {
    const size_t code = i % part / (2 * group);
    const size_t of_code = i % (2 * group);  // 2 · pair, + 1 if imaginary
    planes[i / part * part + of_code * codes + code] = rows[i];
  }
  return planes;
}

/// Codes of keys in bytes, which attention sums; empty for codes that it decodes first.
struct ByteRows {
  ByteRows(Allocator& allocator, const CodebookShape& shape, const Vector<float>& codes)
      : rows(allocator), units(allocator) {
    if (shape.keys.stages == 0 || shape.groups() != 1 || shape.head_dim != kCommvqDim) return;
    constexpr float kLargestByte = 127.0F;
    const auto pairs = static_cast<size_t>(shape.pairs());
    const size_t of_head = codes.size() / static_cast<size_t>(shape.kv_heads);
    units.resize(static_cast<size_t>(shape.kv_heads) * pairs);
    for (size_t i = 0; i < codes.size(); ++i) {
      float& unit = units[i / of_head * pairs + i / 2 % pairs];
      unit = std::max(unit, std::abs(codes[i]) / kLargestByte);
    }
    rows.resize(codes.size());
    for (size_t i = 0; i < codes.size(); ++i) {
      const float unit = units[i / of_head * pairs + i / 2 % pairs];
      rows[i] = static_cast<uint8_t>(128 + std::lround(unit > 0.0F ? codes[i] / unit : 0.0F));
    }
  }

  Vector<uint8_t> rows;
  Vector<float> units;
};

SharedNumbers shared_numbers(const commvq::TokenNumbers& numbers, Scope scope) {
  return {.offset = static_cast<int32_t>(numbers.offset),
          .share = numbers.share,
          .of_layer = scope == Scope::kLayer ? 1 : 0};
}

KeyTables key_tables(const CodebookShape& shape) {
  KeyTables keys{};
  if (shape.keys.stages == 0) return keys;
  const commvq::KeyLayout layout = commvq::key_layout(shape);
  keys.stages = shape.keys.stages;
  keys.codes = shape.keys.codes;
  keys.index_bits = layout.index_bits;
  keys.group = shape.keys.group;
  keys.groups = shape.groups();
  keys.numbers = shared_numbers(layout.norms, shape.keys.norms);
  return keys;
}

ValueTables value_tables(const CodebookShape& shape) {
  ValueTables values{};
  if (shape.values.bits == 0) return values;
  const commvq::ValueLayout layout = commvq::value_layout(shape);
  values.lanes = layout.lanes;
  values.parts = shape.values.scope == Scope::kLayer ? shape.kv_heads : 1;
  values.width = shape.width();
  values.bits = shape.code_bits();
  const bool network = shape.values.proposal == ValueProposal::kNetwork;
  values.stages = network ? 1 : (values.bits + values.width - 1) / values.width;
  values.numbers = shared_numbers(layout.scales, shape.values.scope);
  values.network.hidden = shape.values.hidden;
  return values;
}

}  // namespace

DeviceCodebook::DeviceCodebook(Device& device, Allocator& allocator, std::shared_ptr<const ModelCodebook> codebook)
    : codebook_(std::move(codebook)), layers_(allocator) {
  const CodebookShape& shape = codebook_->shape;
  if (shape.code_bits() > kMostCodeBits) {
    fail(KVQ_E_UNSUPPORTED, "options->codebook has %d bits for the values of a token, must be at most %d on CUDA",
         shape.code_bits(), kMostCodeBits);
  }
  layers_.reserve(static_cast<size_t>(shape.n_layers));
  for (const ModelCodebook::Layer& layer : codebook_->layers) {
    layers_.push_back(make_layer(device, allocator, *layer.numbers));
  }
}

DeviceCodebook::Layer DeviceCodebook::make_layer(Device& device, Allocator& allocator,
                                                 const LayerCodebook& numbers) const {
  const CodebookShape& shape = codebook_->shape;
  KeyTables keys = key_tables(shape);
  ValueTables values = value_tables(shape);
  const auto codes = static_cast<size_t>(keys.codes);
  const Float16s rows = to_float16s(allocator, numbers.key_codes);
  const Float16s planes = planes_of(allocator, rows, codes, static_cast<size_t>(keys.group));
  const Float16s value_codes = to_float16s(allocator, numbers.value_codes);
  const Float16s proposal = to_float16s(allocator, numbers.proposal);
  const Float16s first = to_float16s(allocator, numbers.network_first);
  const Float16s second = to_float16s(allocator, numbers.network_second);
  const ByteRows bytes(allocator, shape, numbers.key_codes);
  const size_t parts = keys.stages > 0 ? rows.size() / (2 * codes * static_cast<size_t>(keys.group)) : 0;
  const auto vectors = static_cast<size_t>(values.lanes > 0 ? shape.vectors() : 0);
  const auto bits = static_cast<size_t>(values.bits);
  const auto width = static_cast<size_t>(values.width);
  const auto stages = static_cast<size_t>(values.stages);
  using Arrays = DeviceArrays;
  Layer layer{Arrays(device, allocator,
                     Arrays::bytes_for(rows, planes, bytes.rows, bytes.units, value_codes, proposal, first, second,
                                       numbers.channel_scale, numbers.value_offset, numbers.proposal_bias,
                                       numbers.network_norm_gain, numbers.network_norm_bias, numbers.network_first_bias,
                                       numbers.network_second_bias) +
                         Arrays::bytes_for_room<float>(parts * codes * codes) +
                         Arrays::bytes_for_room<float>(vectors * bits * bits) +
                         Arrays::bytes_for_room<float>(vectors * stages * width) +
                         Arrays::bytes_for_room<float>(vectors * stages * bits) +
                         Arrays::bytes_for_room<double>(vectors * stages)),
              CodebookTables{}, KeyBytes{}};
  Arrays& arrays = layer.arrays;
  if (keys.stages > 0) {
    keys.rows = reinterpret_cast<const uint32_t*>(arrays.put(rows));
    keys.planes = arrays.put(planes);
    layer.key_bytes = {reinterpret_cast<const uint4*>(arrays.put(bytes.rows)), arrays.put(bytes.units)};
    auto* norms = arrays.take<float>(parts * codes * codes);
    keys.norms = norms;
    check(launch_centre_norms(keys.rows, static_cast<int32_t>(parts), keys.codes, keys.group, norms, device.stream()),
          "kernel of codebooks");
  }
  if (values.lanes > 0) {
    values.codes = arrays.put(value_codes);
    values.proposal = arrays.put(proposal);
    values.proposal_bias = arrays.put(numbers.proposal_bias);
    values.channel_scale = arrays.put(numbers.channel_scale);
    values.offset = arrays.put(numbers.value_offset);
    values.network.norm_gain = arrays.put(numbers.network_norm_gain);
    values.network.norm_bias = arrays.put(numbers.network_norm_bias);
    values.network.first = arrays.put(first);
    values.network.first_bias = arrays.put(numbers.network_first_bias);
    values.network.second = arrays.put(second);
    values.network.second_bias = arrays.put(numbers.network_second_bias);
    auto* gram = arrays.take<float>(vectors * bits * bits);
    auto* offsets = arrays.take<float>(vectors * stages * width);
    auto* offset_products = arrays.take<float>(vectors * stages * bits);
    auto* offset_norms = arrays.take<double>(vectors * stages);
    check(launch_value_tables(values, static_cast<int32_t>(vectors), gram, offsets, offset_products, offset_norms,
                              device.stream()),
          "kernel of codebooks");
    values.gram = gram;
    values.offsets = offsets;
    values.offset_products = offset_products;
    values.offset_norms = offset_norms;
  }
  layer.tables = {.kv_heads = shape.kv_heads,
                  .head_dim = shape.head_dim,
                  .pairing = shape.pairing,
                  .keys = keys,
                  .values = values,
                  .rotations = nullptr};
  return layer;
}

CodebookContext::CodebookContext(Device& device, Allocator& allocator, const Codec& codec_,
                                 const DeviceCodebook& codebook, int32_t layer, const OptionValues& options,
                                 const RotationTable& rotations)
    : LayerContext(codec_),
      arrays_(device, allocator, DeviceArrays::bytes_for(rotations.digits())),
      tables_(codebook.tables(layer)),
      key_bytes_(codebook.key_bytes(layer)),
      effort_{.beam = options[commvq::kBeam], .flips = options[commvq::kFlips]} {
  tables_.rotations = arrays_.put(rotations.digits());
}

}  // namespace kvq::cuda
