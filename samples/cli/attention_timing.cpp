#include "attention_timing.h"

#include <algorithm>
#include <chrono>
#include <random>

namespace cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int32_t kAppendChunk = 1024;
constexpr int64_t kMaxRepetitions = 300;
constexpr std::chrono::milliseconds kEnoughTime{1000};  // after kTimingSteps
constexpr std::chrono::milliseconds kPatience{8000};    // even before them
constexpr uint64_t kMostCaches = 256;
constexpr uint64_t kKeySeed = 1;
constexpr uint64_t kValueSeed = 2;
constexpr uint64_t kQuerySeed = 3;  // of the first ones
constexpr size_t kMostQueries = 8;  // to be used in turn, as long as they are small
constexpr size_t kQueryScalars = size_t{1} << 20;

std::vector<float> normal_numbers(size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(n);
  for (float& number : numbers) number = normal(random);
  return numbers;
}

size_t query_scalars(const AttentionShape& shape) {
  return static_cast<size_t>(shape.batch) * static_cast<size_t>(shape.q_heads) * static_cast<size_t>(shape.head_dim);
}

llama::CacheHandle one_layer_cache(kvq_context* context, const kvq_policy* policy, const AttentionShape& shape) {
  kvq_cache_options options;
  kvq_cache_options_init(&options);
  options.n_layers = 1;
  options.q_heads = shape.q_heads;
  options.kv_heads = shape.kv_heads;
  options.head_dim = shape.head_dim;
  return llama::make_cache(context, options, policy);
}

Timing summary(std::vector<double> microseconds) {
  std::ranges::sort(microseconds);
  const size_t n = microseconds.size();
  return {.median = (microseconds[(n - 1) / 2] + microseconds[n / 2]) / 2,
          .min = microseconds.front(),
          .max = microseconds.back(),
          .repetitions = static_cast<int32_t>(n)};
}

}  // namespace

TimedAttention::TimedAttention(TimedDevice& device, kvq_context* context, const kvq_policy* policy,
                               const AttentionShape& shape)
    : device_(&device),
      cache_(one_layer_cache(context, policy, shape)),
      out_(device.upload(std::vector<float>(query_scalars(shape)))) {
  const size_t scalars = query_scalars(shape);
  for (size_t i = 0; i < std::clamp<size_t>(kQueryScalars / scalars, 1, kMostQueries); ++i) {
    queries_.push_back(device.upload(normal_numbers(scalars, kQuerySeed + i)));
  }
  fill_first(shape);
  for (const llama::SequenceHandle& sequence : batches_.front()) {
    const kvq_usage usage = llama::usage_of(cache_.get(), sequence.get());
    bytes_ += usage.sealed_bytes + usage.fp16_bytes + usage.metadata_bytes;
    bits_per_scalar_ = usage.bits_per_scalar;
  }
  copy_first(std::clamp<uint64_t>((device.bytes_to_rotate() + bytes_ - 1) / bytes_, 1, kMostCaches) - 1);
}

void TimedAttention::fill_first(const AttentionShape& shape) {
  const auto chunk = static_cast<size_t>(std::min(kAppendChunk, shape.length));
  const size_t token_width = static_cast<size_t>(shape.kv_heads) * static_cast<size_t>(shape.head_dim);
  const DeviceBuffer keys = device_->upload(normal_numbers(chunk * token_width, kKeySeed));
  const DeviceBuffer values = device_->upload(normal_numbers(chunk * token_width, kValueSeed));
  SequenceBatch batch;
  for (int32_t i = 0; i < shape.batch; ++i) {
    batch.push_back(llama::make_sequence(cache_.get()));
    for (int32_t begin = 0; begin < shape.length; begin += kAppendChunk) {
      const int32_t n = std::min(kAppendChunk, shape.length - begin);
      llama::checked([&](kvq_error* error) {
        return kvq_append(cache_.get(), batch.back().get(), 0, n, keys.get(), values.get(), KVQ_F32, nullptr, error);
      });
    }
  }
  batches_.push_back(std::move(batch));
}

// By way of snapshots, which is faster than encoding everything again. A fork would share the pages.
void TimedAttention::copy_first(uint64_t copies) {
  if (copies == 0) return;
  std::vector<std::vector<std::byte>> snapshots;
  for (const llama::SequenceHandle& sequence : batches_.front()) {
    snapshots.push_back(llama::save_sequence(cache_.get(), sequence.get()));
  }
  for (uint64_t i = 0; i < copies; ++i) {
    SequenceBatch batch;
    for (const std::vector<std::byte>& snapshot : snapshots) {
      batch.push_back(llama::load_sequence(cache_.get(), snapshot));
    }
    batches_.push_back(std::move(batch));
  }
}

double TimedAttention::run() {
  std::vector<const kvq_sequence*> sequences;
  for (const llama::SequenceHandle& sequence : batches_[runs_ % batches_.size()]) sequences.push_back(sequence.get());

  kvq_attend_batch batch;
  kvq_attend_batch_init(&batch);
  batch.n_sequences = static_cast<int32_t>(sequences.size());
  batch.sequences = sequences.data();
  batch.q = queries_[runs_ % queries_.size()].get();
  batch.q_dtype = KVQ_F32;
  batch.out_dtype = KVQ_F32;
  batch.out = out_.get();
  ++runs_;
  return device_->time(
      [&] { llama::checked([&](kvq_error* error) { return kvq_attend(cache_.get(), 0, &batch, error); }); });
}

std::vector<Timing> time_interleaved(std::span<TimedAttention> subjects, Progress& progress) {
  for (TimedAttention& subject : subjects) subject.run();  // warm-up: work space, threads
  std::vector<std::vector<double>> samples(subjects.size());
  const Clock::time_point begin = Clock::now();
  for (int64_t repetition = 0; repetition < kMaxRepetitions; ++repetition) {
    const Clock::duration elapsed = Clock::now() - begin;
    if (repetition > 0 && elapsed > (repetition < kTimingSteps ? kPatience : kEnoughTime)) break;
    for (size_t turn = 0; turn < subjects.size(); ++turn) {
      const size_t i = repetition % 2 == 0 ? turn : subjects.size() - 1 - turn;  // nobody always follows the same one
      samples[i].push_back(subjects[i].run());
    }
    if (repetition < kTimingSteps) progress.advance(1);
  }
  std::vector<Timing> timings;
  for (std::vector<double>& sample : samples) timings.push_back(summary(std::move(sample)));
  return timings;
}

uint64_t timing_memory(const TimedDevice& device, const AttentionShape& shape, size_t subjects) {
  constexpr uint64_t kBytesPerFp16Pair = 4;  // one scalar of the key and one of the value
  const uint64_t fp16 = kBytesPerFp16Pair * static_cast<uint64_t>(shape.length) * static_cast<uint64_t>(shape.batch) *
                        static_cast<uint64_t>(shape.kv_heads) * static_cast<uint64_t>(shape.head_dim);
  return subjects * (fp16 + device.bytes_to_rotate());
}

}  // namespace cli
