#include "pages/device_centres.h"

#include "device/device.h"

namespace kvq::cuda {
namespace {

size_t bytes_for(const SideArrays& of) {
  return DeviceArrays::bytes_for(of.floats, of.rounded, of.means, of.scales, of.biases);
}

CentreSearchTables put_search(const SideArrays& of, DeviceArrays& to) {
  return {.rounded = reinterpret_cast<const uint32_t*>(to.put(of.rounded)),
          .means = to.put(of.means),
          .scales = to.put(of.scales),
          .biases = to.put(of.biases),
          .own_biases = nullptr,
          .padded = of.padded};
}

}  // namespace

DeviceCentres::DeviceCentres(Device& device, Allocator& allocator, std::shared_ptr<const ModelCentres> centres)
    : centres_(std::move(centres)), layers_(allocator) {
  const CentresShape& shape = centres_->shape;
  layers_.reserve(static_cast<size_t>(shape.n_layers));
  for (int32_t layer = 0; layer < shape.n_layers; ++layer) {
    const SideArrays keys(allocator, *centres_, layer, Side::kKeys);
    const SideArrays values(allocator, *centres_, layer, Side::kValues);
    layers_.push_back({DeviceArrays(device, allocator, bytes_for(keys) + bytes_for(values)), CentreTables{}});
    auto& [arrays, tables] = layers_.back();
    tables.keys_float = arrays.put(keys.floats);
    tables.key_centres = shape.key_centres;
    tables.key_search = put_search(keys, arrays);
    tables.values_float = arrays.put(values.floats);
    tables.value_centres = shape.value_centres;
    tables.value_search = put_search(values, arrays);
  }
}

CentreContext::CentreContext(Device& device, Allocator& allocator, const Codec& codec_, const DeviceCentres& centres,
                             int32_t layer, const Rope& rope)
    : CentreContext(device, allocator, codec_, centres.tables(layer),
                    RotationArrays(allocator, centres.centres(), layer, rope),
                    CentreRowArrays(allocator, centres.centres(), layer, rope)) {}

CentreContext::CentreContext(Device& device, Allocator& allocator, const Codec& codec_, const CentreTables& shared,
                             const RotationArrays& rotations, const CentreRowArrays& rows)
    : LayerContext(codec_),
      arrays_(device, allocator,
              DeviceArrays::bytes_for(rotations.biases, rotations.page_rotations, rows.keys, rows.values,
                                      rows.slot_rotations, rows.frequencies)),
      tables_(shared),
      rows_(rows.counts) {
  tables_.page_rotations = arrays_.put(rotations.page_rotations);
  tables_.key_search.own_biases = tables_.key_search.biases;
  tables_.key_search.biases = arrays_.put(rotations.biases);
  rows_.keys = reinterpret_cast<const uint4*>(arrays_.put(rows.keys));
  rows_.values = reinterpret_cast<const uint4*>(arrays_.put(rows.values));
  rows_.slot_rotations = reinterpret_cast<const uint4*>(arrays_.put(rows.slot_rotations));
  rows_.frequencies = reinterpret_cast<const uint2*>(arrays_.put(rows.frequencies));
  rows_.own_keys = tables_.keys_float;
}

}  // namespace kvq::cuda
