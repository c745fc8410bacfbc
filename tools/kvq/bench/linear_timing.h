#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "bench/timed_device.h"
#include "kvq.hpp"
#include "options/model_options.h"

namespace cli {

struct LinearShape {
  int64_t out = 14336;
  int64_t in = 4096;
  int32_t batch = 1;
  std::vector<int64_t> also = {};    // outputs of further layers that are multiplied in the same call
  uint64_t most_bytes = UINT64_MAX;  // of all matrices that calls read in turn: a small model stays in caches
  kvq_dtype dtype = KVQ_F32;         // of inputs and outputs
  bool recorded = false;             // calls are recorded together, not timed one by one

  int64_t all_outputs() const;
};

/// Linear layers of random weights in one scheme, quickly made: codes repeat, which takes as long to multiply by.
class RandomMatrices {
 public:
  RandomMatrices(kvq_context* context, std::string scheme) : context_(context), scheme_(std::move(scheme)) {}

  /// In memory of its own, each time; the first one of a shape takes longer.
  kvq::Matrix load(int64_t out, int64_t in);

 private:
  const std::vector<std::byte>& file(int64_t out, int64_t in);

  kvq_context* context_;
  std::string scheme_;
  std::map<int64_t, std::vector<std::byte>> blocks_;                     // by columns
  std::map<std::pair<int64_t, int64_t>, std::vector<std::byte>> files_;  // by outputs and inputs
};

/// A linear layer of random weights, or several that share their inputs, ready to be timed. Holds as many equal ones as
/// it takes for every call to read its own from memory.
class TimedLinear {
 public:
  TimedLinear(TimedDevice& device, kvq_context* context, const Tuning& tuning, const std::string& scheme,
              const LinearShape& shape);
  TimedLinear(const TimedLinear&) = delete;
  TimedLinear& operator=(const TimedLinear&) = delete;

  /// Microseconds of one call; of recorded ones, in their mean.
  double run();
  /// Bytes that one call reads.
  uint64_t bytes() const { return bytes_; }
  double bits() const { return bits_; }

 private:
  using Layer = std::vector<kvq::Matrix>;  // those of one call

  void load(RandomMatrices& random, const LinearShape& shape);
  void multiply(const Layer& layer);
  void record(kvq_context* context);

  TimedDevice* device_;
  std::vector<Layer> layers_;
  DeviceBuffer x_;               // [batch, in]
  std::vector<DeviceBuffer> y_;  // [batch, out] of each matrix of a layer
  int32_t batch_;
  kvq_dtype dtype_;
  std::function<void()> recorded_;  // calls on all layers; none if each is timed
  size_t recorded_calls_ = 0;
  size_t runs_ = 0;
  uint64_t bytes_ = 0;
  double bits_ = 0.0;
};

/// Bytes that timing `subjects` schemes at this shape may take, at most.
uint64_t timing_memory(const TimedDevice& device, const LinearShape& shape, size_t subjects);

}  // namespace cli
