// Which of a device's kernels multiplies fastest for which shape, measured instead of estimated.
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
  /// Measures kernels for calls with these matrices and so many rows, which then take the fastest. Measured shapes are
  /// not measured again. Waits for the device.
  virtual void tune(Allocator& allocator, std::span<const Resident* const> matrices, int32_t batch) = 0;
  /// What is known, as a text that load() reads.
  virtual std::string save() = 0;
  /// Adds what a text has. Throws KVQ_E_FORMAT, KVQ_E_MISMATCH.
  virtual void load(std::string_view text) = 0;
};

}  // namespace kvq
