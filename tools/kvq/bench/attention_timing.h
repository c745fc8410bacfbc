#pragma once

#include <cstdint>
#include <vector>

#include "bench/random_layer.h"
#include "options/spec.h"

namespace cli {

struct AttentionShape {
  LayerShape layer{};
  int32_t length = 32768;
  int32_t batch = 1;
  int32_t queries = 1;               // of a sequence: its newest tokens'
  uint64_t most_bytes = UINT64_MAX;  // of all caches that calls read in turn: those of a small model stay in caches
};

/// Attention of one layer on random keys and values, ready to be timed. Holds as many equal caches as it takes that
/// successive calls read theirs from memory and not from the processor's own cache.
class TimedAttention {
 public:
  /// `context` computes on `device`.
  TimedAttention(TimedDevice& device, kvq_context* context, const Spec& format, const AttentionShape& shape);

  /// One call on the next of the caches with the next of the queries, in microseconds.
  double run();

  /// Of the keys and values that one call reads, everything counted, and for each scalar.
  uint64_t bytes() const { return bytes_; }
  double bits() const { return bits_; }

 private:
  using SequenceBatch = std::vector<kvq::Sequence>;

  void fill_first(const AttentionShape& shape);
  void compress_first(const Spec& format, const AttentionShape& shape);
  void copy_first(uint64_t copies);

  TimedDevice* device_;
  kvq::Cache cache_;
  std::vector<SequenceBatch> batches_;  // equal ones, used in turn
  std::vector<DeviceBuffer> queries_;   // [batch, queries, q_heads, head_dim] each, used in turn
  DeviceBuffer out_;
  int32_t n_queries_;  // of a sequence
  size_t runs_ = 0;
  uint64_t bytes_ = 0;
  double bits_ = 0.0;
};

/// Bytes of the device that timing `subjects` subjects of this shape may take, at most.
uint64_t timing_memory(const TimedDevice& device, const AttentionShape& shape, size_t subjects);

}  // namespace cli
