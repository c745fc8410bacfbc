#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bench/attention_timing.h"
#include "bench/disturbance.h"
#include "options/compute.h"
#include "options/engine.h"

namespace cli {

/// Attention on caches of some formats.
struct AttentionSpeed {
  std::vector<double> microseconds;  // of each format, the best of all rounds
  int32_t rounds = 0;                // each of one call for every format
  Disturbance disturbance;
};

AttentionSpeed measure_attention_speed(const ComputeOptions& compute, const AttentionShape& shape,
                                       const std::vector<std::string>& formats);

/// How fast a model reads.
struct ReadingSpeed {
  double tokens_per_second = 0.0;  // on a quiet machine
  Disturbance disturbance;         // of this one
};

/// A little of a text with an FP16 cache, in chunks of `chunk` tokens.
ReadingSpeed measure_reading_speed(Engine& engine, std::span<const int32_t> tokens, int32_t chunk);

}  // namespace cli
