#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "llama/handles.h"
#include "progress.h"
#include "timed_device.h"

namespace cli {

struct AttentionShape {
  int32_t length = 32768;
  int32_t q_heads = 32;
  int32_t kv_heads = 8;
  int32_t head_dim = 128;
  int32_t batch = 1;
};

/** Microseconds of one call. */
struct Timing {
  double median = 0.0;
  double min = 0.0;
  double max = 0.0;
  int32_t repetitions = 0;
};

/** Decoding attention of one layer on random keys and values, ready to be timed. Holds as many equal caches as it takes
 *  that successive calls read theirs from memory and not from the processor's own cache. */
class TimedAttention {
 public:
  /** `context` computes on `device`. */
  TimedAttention(TimedDevice& device, kvq_context* context, const kvq_policy* policy, const AttentionShape& shape);

  /** One call on the next of the caches with the next of the queries, in microseconds. */
  double run();

  /** Bytes of keys and values that one call reads, everything counted. */
  uint64_t bytes() const { return bytes_; }
  double bits_per_scalar() const { return bits_per_scalar_; }

 private:
  using SequenceBatch = std::vector<llama::SequenceHandle>;

  void fill_first(const AttentionShape& shape);
  void copy_first(uint64_t copies);

  TimedDevice* device_;
  llama::CacheHandle cache_;
  std::vector<SequenceBatch> batches_;  // equal ones, used in turn
  std::vector<DeviceBuffer> queries_;   // [batch, q_heads, head_dim] each, used in turn
  DeviceBuffer out_;
  size_t runs_ = 0;
  uint64_t bytes_ = 0;
  double bits_per_scalar_ = 0.0;
};

inline constexpr int64_t kTimingSteps = 30;  // repetitions, at least, unless they take many seconds

/** Time all subjects in turn, again and again, so that whatever disturbs the machine disturbs them alike.
 *  `progress` advances by up to kTimingSteps. */
std::vector<Timing> time_interleaved(std::span<TimedAttention> subjects, Progress& progress);

/** Bytes of the device that timing `subjects` subjects of this shape may take, at most. */
uint64_t timing_memory(const TimedDevice& device, const AttentionShape& shape, size_t subjects);

}  // namespace cli
