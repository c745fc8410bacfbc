// Choice of a device's fastest multiplication kernel per shape, by measurement instead of estimate.
#pragma once

#include "core/memory.h"
#include "core/resident.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace kvq {

class Tuning {
 public:
  virtual ~Tuning() = default;
  /// Measure calls with these matrices and `batch` rows, and use the fastest kernel from now on. Known shapes are not
  /// measured again. Waits for the device.
  virtual void tune(Allocator& allocator, std::span<const Resident* const> matrices, int32_t batch) = 0;
  /// Known choices, as a text for load().
  virtual std::string save() = 0;
  /// Add the choices of a text. Throws KVQ_E_FORMAT, KVQ_E_MISMATCH.
  virtual void load(std::string_view text) = 0;
};

}  // namespace kvq
