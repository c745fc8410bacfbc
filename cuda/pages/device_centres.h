// Trained centres in device memory.
#pragma once

#include "core/resident.h"
#include "device/device_arrays.h"
#include "formats/codec.h"
#include "formats/gain_shape/gain_shape.h"
#include "formats/gain_shape/model_centres.h"
#include "kernels/pages/centre_tables.h"
#include "pages/centre_arrays.h"

#include <cstddef>
#include <memory>

namespace kvq::cuda {

/// A model's centres in device memory, for all caches with them.
class DeviceCentres final : public Resident {
 public:
  DeviceCentres(Device& device, Allocator& allocator, std::shared_ptr<const ModelCentres> centres);

  const ModelCentres& centres() const { return *centres_; }
  /// A layer's tables without what its context adds.
  const CentreTables& tables(int32_t layer) const { return layers_[static_cast<size_t>(layer)].tables; }

 private:
  struct Layer {
    DeviceArrays arrays;
    CentreTables tables;
  };

  std::shared_ptr<const ModelCentres> centres_;
  Vector<Layer> layers_;
};

/// The centres of a layer, rotated as a cache rotates keys. The resident outlives it.
class CentreContext final : public LayerContext {
 public:
  CentreContext(Device& device, Allocator& allocator, const Codec& codec_, const DeviceCentres& centres, int32_t layer,
                const Rope& rope);

  const CentreTables& tables() const { return tables_; }
  const CentreRows& rows() const { return rows_; }

 private:
  CentreContext(Device& device, Allocator& allocator, const Codec& codec_, const CentreTables& shared,
                const RotationArrays& rotations, const CentreRowArrays& rows);

  DeviceArrays arrays_;
  CentreTables tables_;
  CentreRows rows_;
};

/// Null unless the layer has trained centres.
inline const CentreContext* centre_context(const LayerContext* context) {
  const bool is_one = context != nullptr && context->codec.number == gain_shape::kCodec.number;
  return is_one ? static_cast<const CentreContext*>(context) : nullptr;
}

}  // namespace kvq::cuda
