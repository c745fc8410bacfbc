#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bench/timed_device.h"
#include "kvq.hpp"

namespace cli {

struct LinearShape {
  int64_t out = 14336;
  int64_t in = 4096;
  int32_t batch = 1;
  std::vector<int64_t> also = {};    // outputs of further layers that are multiplied in the same call
  uint64_t most_bytes = UINT64_MAX;  // of all matrices that calls read in turn: a small model stays in caches

  int64_t all_outputs() const;
};

/// A linear layer of random weights, quickly made: its rows repeat, which takes as long to multiply by.
kvq::Matrix random_linear(kvq_context* context, const std::string& scheme, int64_t out, int64_t in);

/// A linear layer of random weights, or several that share their inputs, ready to be timed. Holds as many equal ones as
/// it takes for every call to read its own from memory.
class TimedLinear {
 public:
  TimedLinear(TimedDevice& device, kvq_context* context, const std::string& scheme, const LinearShape& shape);

  /// Microseconds of one call.
  double run();
  /// Of what one call reads.
  uint64_t bytes() const { return bytes_; }
  double bits() const { return bits_; }

 private:
  void load(kvq_context* context, std::span<const std::vector<std::byte>> files);

  TimedDevice* device_;
  std::vector<std::vector<kvq::Matrix>> layers_;  // each those of one call
  DeviceBuffer x_;                                // [batch, in]
  std::vector<DeviceBuffer> y_;                   // [batch, out] of each layer
  int32_t batch_;
  size_t runs_ = 0;
  uint64_t bytes_ = 0;
  double bits_ = 0.0;
};

/// Bytes that timing `subjects` schemes at this shape may take, at most.
uint64_t timing_memory(const TimedDevice& device, const LinearShape& shape, size_t subjects);

}  // namespace cli
