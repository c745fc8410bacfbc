// Trained centres in device memory.
#pragma once

#include "centre_arrays.h"
#include "centre_rows.h"
#include "core/memory.h"
#include "core/resident.h"
#include "formats/codec.h"
#include "formats/gain_shape/model_centres.h"
#include "kernels/centre_tables.h"

#include <cstddef>
#include <memory>

namespace kvq::cuda {

class CudaBackend;

/// Arrays one behind the other. Made and filled during a call of the backend.
class DeviceArrays {
 public:
  template <typename... Arrays>
  static size_t bytes_for(const Arrays&... arrays) {
    return (padded(arrays.size() * sizeof(arrays[0])) + ... + 0);
  }

  DeviceArrays(CudaBackend& backend, Allocator& account, size_t bytes);
  DeviceArrays(DeviceArrays&& other) noexcept;
  DeviceArrays& operator=(DeviceArrays&& other) = delete;
  ~DeviceArrays();

  /// Copy an array to the next place; null if it is empty.
  template <typename Array>
  auto put(const Array& array) -> decltype(array.data()) {
    return static_cast<decltype(array.data())>(put_bytes(array.data(), array.size() * sizeof(array[0])));
  }

 private:
  static constexpr size_t padded(size_t bytes) { return (bytes + 255) / 256 * 256; }
  const void* put_bytes(const void* host, size_t bytes);

  CudaBackend& backend_;
  Allocator& account_;
  std::byte* memory_;
  size_t bytes_;
  size_t used_ = 0;
};

/// What caches with the same centres share.
class DeviceCentres final : public Resident {
 public:
  DeviceCentres(CudaBackend& backend, Allocator& allocator, std::shared_ptr<const ModelCentres> centres);

  const ModelCentres& centres() const { return *centres_; }
  /// Without what a layer's context adds.
  const CentreTables& tables(int32_t layer) const { return layers_[static_cast<size_t>(layer)].tables; }

 private:
  struct Layer {
    DeviceArrays arrays;
    CentreTables tables;
  };

  std::shared_ptr<const ModelCentres> centres_;
  Vector<Layer> layers_;
};

/// The centres of a layer, turned as a cache turns keys. The resident outlives it.
class CentreContext final : public LayerContext {
 public:
  CentreContext(CudaBackend& backend, Allocator& allocator, const Codec& codec_, const DeviceCentres& centres,
                int32_t layer, const Rope& rope);

  const CentreTables& tables() const { return tables_; }
  const CentreRows& rows() const { return rows_; }

 private:
  CentreContext(CudaBackend& backend, Allocator& allocator, const Codec& codec_, const CentreTables& shared,
                const TurnArrays& turns, const CentreRowArrays& rows);

  DeviceArrays arrays_;
  CentreTables tables_;
  CentreRows rows_;
};

/// Of a layer's context, which may be null.
inline CentreTables centre_tables(const LayerContext* context) {
  return context != nullptr ? static_cast<const CentreContext*>(context)->tables() : CentreTables{};
}

}  // namespace kvq::cuda
