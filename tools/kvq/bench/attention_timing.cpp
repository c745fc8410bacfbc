#include "bench/attention_timing.h"

#include <algorithm>

namespace cli {
namespace {

constexpr uint64_t kMostCaches = 256;
constexpr uint64_t kAttentionQuerySeed = 3;  // of the first ones
constexpr size_t kMostQueries = 8;           // to be used in turn, as long as they are small
constexpr size_t kQueryScalars = size_t{1} << 20;

size_t query_scalars(const AttentionShape& shape) {
  return static_cast<size_t>(shape.batch) * static_cast<size_t>(shape.queries) *
         static_cast<size_t>(shape.layer.q_heads) * static_cast<size_t>(shape.layer.head_dim);
}

}  // namespace

TimedAttention::TimedAttention(TimedDevice& device, kvq_context* context, const Spec& format,
                               const AttentionShape& shape)
    : device_(&device),
      cache_(cache_of_layers(context, format, shape.layer)),
      out_(device.upload(std::vector<std::byte>(query_scalars(shape) * sizeof(float)))),
      n_queries_(shape.queries) {
  const size_t scalars = query_scalars(shape);
  for (size_t i = 0; i < std::clamp<size_t>(kQueryScalars / scalars, 1, kMostQueries); ++i) {
    queries_.push_back(random_scalars(device, scalars, kAttentionQuerySeed + i));
  }
  fill_first(shape);
  if (format.evicts()) compress_first(format, shape);
  for (const kvq::Sequence& sequence : batches_.front()) {
    const kvq_usage usage = sequence.usage();
    bytes_ += usage.sealed_bytes + usage.fp16_bytes + usage.metadata_bytes;
    bits_ = usage.bits_per_scalar;
  }
  const uint64_t wanted = std::min(device.bytes_to_rotate(false), shape.most_bytes);
  copy_first(std::clamp<uint64_t>((wanted + bytes_ - 1) / bytes_, 1, kMostCaches) - 1);
}

void TimedAttention::fill_first(const AttentionShape& shape) {
  SequenceBatch batch;
  for (int32_t i = 0; i < shape.batch; ++i) batch.emplace_back(cache_);
  append_random(*device_, batch, shape.layer, shape.length);
  batches_.push_back(std::move(batch));
}

// As after a prompt of random tokens, whose last queries are random too.
void TimedAttention::compress_first(const Spec& format, const AttentionShape& shape) {
  const int32_t window = std::min(format.policy.describe().eviction_window, shape.length);
  auto options = kvq::initialised<kvq_compress_options>();
  options.budget = format.budget_after(shape.length);
  for (kvq::Sequence& sequence : batches_.front()) {
    attend_random(*device_, cache_, sequence, shape.layer, window);
    sequence.compress(options);
  }
}

// By way of snapshots, which is faster than encoding everything again. A fork would share the pages.
void TimedAttention::copy_first(uint64_t copies) {
  if (copies == 0) return;
  std::vector<std::vector<std::byte>> snapshots;
  for (const kvq::Sequence& sequence : batches_.front()) {
    snapshots.push_back(sequence.save());
  }
  for (uint64_t i = 0; i < copies; ++i) {
    SequenceBatch batch;
    for (const std::vector<std::byte>& snapshot : snapshots) {
      batch.push_back(kvq::Sequence::load(cache_, snapshot));
    }
    batches_.push_back(std::move(batch));
  }
}

double TimedAttention::run() {
  const auto sequences = kvq::pointers(batches_[runs_ % batches_.size()]);
  const std::vector<int32_t> counts(sequences.size(), n_queries_);
  auto batch = kvq::initialised<kvq_attend_batch>();
  batch.n_sequences = static_cast<int32_t>(sequences.size());
  batch.sequences = sequences.data();
  batch.query_counts = counts.data();
  batch.q = queries_[runs_ % queries_.size()].get();
  batch.output = out_.get();
  ++runs_;
  const auto attend = [&] { cache_.attend(0, batch); };
  if (device_->forgets_instructions()) attend();
  return device_->time(attend);
}

uint64_t timing_memory(const TimedDevice& device, const AttentionShape& shape, size_t subjects) {
  const uint64_t fp16 =
      shape.layer.fp16_token_bytes() * static_cast<uint64_t>(shape.length) * static_cast<uint64_t>(shape.batch);
  return subjects * (fp16 + device.bytes_to_rotate(false));
}

}  // namespace cli
