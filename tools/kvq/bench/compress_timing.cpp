#include "bench/compress_timing.h"

#include <algorithm>

namespace cli {
namespace {

uint64_t bytes_of(const kvq::Sequence& sequence) {
  const kvq_usage usage = sequence.usage();
  return usage.sealed_bytes + usage.fp16_bytes + usage.metadata_bytes;
}

}  // namespace

TimedCompress::TimedCompress(TimedDevice& device, kvq_context* context, const Spec& format, const CompressShape& shape)
    : device_(&device),
      options_(kvq::initialised<kvq_compress_options>()),
      cache_(cache_of_layers(context, format, shape.layer, shape.n_layers)),
      start_(cache_) {
  options_.budget = format.budget_after(shape.length);
  append_random(device, std::span(&start_, 1), shape.layer, shape.length, shape.n_layers);
  const int32_t window = std::min(format.policy.describe().eviction_window, shape.length);
  attend_random(device, cache_, start_, shape.layer, window, shape.n_layers);
  bytes_ = bytes_of(start_);
}

double TimedCompress::run() {
  kvq::Sequence fork = start_.fork();
  const double microseconds = device_->time([&] { fork.compress(options_); });
  bytes_left_ = bytes_of(fork);
  return microseconds;
}

uint64_t timing_memory(const TimedDevice& /*device*/, const CompressShape& shape, size_t subjects) {
  const uint64_t fp16 = shape.layer.fp16_token_bytes() * static_cast<uint64_t>(shape.length);
  return subjects * 2 * fp16 * static_cast<uint64_t>(shape.n_layers);
}

}  // namespace cli
