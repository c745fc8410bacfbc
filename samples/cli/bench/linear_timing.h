#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/timed_device.h"
#include "kvq.hpp"

namespace cli {

struct LinearShape {
  int64_t out = 14336;
  int64_t in = 4096;
  int32_t batch = 1;
};

/// A linear layer of random weights, ready to be timed. Holds as many equal matrices as it takes for every call to read
/// its own from memory.
class TimedLinear {
 public:
  TimedLinear(TimedDevice& device, kvq_context* context, const std::string& scheme, const LinearShape& shape);

  /// Microseconds of one call.
  double run();
  /// Of one matrix.
  uint64_t bytes() const { return bytes_; }
  double bits() const { return bits_; }

 private:
  TimedDevice* device_;
  std::vector<kvq::Matrix> matrices_;
  DeviceBuffer x_;  // [batch, in]
  DeviceBuffer y_;  // [batch, out]
  int32_t batch_;
  size_t runs_ = 0;
  uint64_t bytes_ = 0;
  double bits_ = 0.0;
};

/// Bytes that timing `subjects` schemes at this shape may take, at most.
uint64_t timing_memory(const TimedDevice& device, const LinearShape& shape, size_t subjects);

}  // namespace cli
