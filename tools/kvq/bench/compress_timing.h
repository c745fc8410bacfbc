#pragma once

#include <cstdint>

#include "bench/random_layer.h"
#include "options/spec.h"

namespace cli {

struct CompressShape {
  LayerShape layer{};
  int32_t n_layers = 4;
  int32_t length = 32768;
};

/// kvq_compress after a prompt of random tokens, ready to be timed.
class TimedCompress {
 public:
  /// `context` computes on `device`. `format` evicts.
  TimedCompress(TimedDevice& device, kvq_context* context, const Spec& format, const CompressShape& shape);

  /// One call, on a fork of the sequence, in microseconds.
  double run();

  /// Of the sequence before, and what the last call freed of it.
  uint64_t bytes() const { return bytes_; }
  uint64_t bytes_left() const { return bytes_left_; }

 private:
  TimedDevice* device_;
  kvq_compress_options options_;
  kvq::Cache cache_;
  kvq::Sequence start_;
  uint64_t bytes_ = 0;
  uint64_t bytes_left_ = 0;
};

/// Bytes of the device that timing `subjects` subjects of this shape may take, at most.
uint64_t timing_memory(const TimedDevice& device, const CompressShape& shape, size_t subjects);

}  // namespace cli
