#include "bench/append_timing.h"

#include <algorithm>

#include "bench/stopwatch.h"

namespace cli {
namespace {

constexpr uint64_t kAppendKeySeed = 4;
constexpr uint64_t kAppendValueSeed = 5;
constexpr uint64_t kMostSequences = 64;  // each of every format grows by its own pages

uint64_t cycle_fp16_bytes(const AppendShape& shape) { return shape.cycle_tokens() * shape.layer.fp16_token_bytes(); }

uint64_t sequences_in_turn(const TimedDevice& device, const AppendShape& shape) {
  if (!shape.is_decoding()) return 1;
  const uint64_t bytes = std::max<uint64_t>(cycle_fp16_bytes(shape), 1);
  return std::clamp<uint64_t>((device.bytes_to_rotate(false) + bytes - 1) / bytes, 1, kMostSequences);
}

// Of `n` pages, each of which takes its share of what all pages take.
uint64_t bytes_of_pages(uint64_t n, uint64_t all_bytes, uint64_t all_pages) {
  return all_pages == 0 ? 0 : n * all_bytes / all_pages;
}

}  // namespace

AppendInput::AppendInput(TimedDevice& device, const AppendShape& shape)
    : keys_(random_scalars(device, shape.cycle_tokens() * shape.layer.token_width(), kAppendKeySeed, shape.dtype)),
      values_(random_scalars(device, shape.cycle_tokens() * shape.layer.token_width(), kAppendValueSeed, shape.dtype)),
      stride_(static_cast<size_t>(shape.tokens) * shape.layer.token_width() * bytes_of(shape.dtype)) {}

TimedAppend::TimedAppend(TimedDevice& device, kvq_context* context, const llama::CacheFormat& format,
                         const AppendShape& shape, const AppendInput& input)
    : device_(&device),
      shape_(shape),
      input_(&input),
      cache_(cache_of_layers(context, format, shape.layer)),
      start_(cache_),
      cycles_(sequences_in_turn(device, shape)) {
  append_random(device, std::span(&start_, 1), shape.layer, shape.length);
  bytes_ = input.call_bytes() + bytes_written_in_cycle() / static_cast<uint64_t>(shape.cycle());
  if (!shape.is_decoding()) return;
  for (size_t i = 0; i < cycles_.size(); ++i) {
    sequences_.push_back(start_.fork());
  }
}

void TimedAppend::append(kvq::Sequence& sequence, int32_t call) {
  sequence.append(0, shape_.tokens, input_->keys(call), input_->values(call), shape_.dtype);
}

uint64_t TimedAppend::bytes_written_in_cycle() {
  kvq::Sequence sequence = start_.fork();
  const kvq_usage before = sequence.usage();
  for (int32_t call = 0; call < shape_.cycle(); ++call) append(sequence, call);
  const kvq_usage after = sequence.usage();
  const uint64_t sealed =
      bytes_of_pages(after.sealed_pages - before.sealed_pages, after.sealed_bytes, after.sealed_pages);
  // While decoding every token is written in FP16 first.
  if (shape_.is_decoding()) return sealed + cycle_fp16_bytes(shape_);
  return sealed + bytes_of_pages(after.fp16_pages - before.fp16_pages, after.fp16_bytes, after.fp16_pages);
}

void TimedAppend::time_append(kvq::Sequence& sequence, Cycle& cycle) {
  const double microseconds = device_->time([&] {
    const Stopwatch watch;
    append(sequence, next_);
    cycle.host += watch.microseconds();
  });
  cycle.device += microseconds;
  calls_.push_back(microseconds);
}

void TimedAppend::run() {
  if (shape_.is_decoding()) {
    for (size_t i = 0; i < sequences_.size(); ++i) time_append(sequences_[i], cycles_[i]);
  } else {
    kvq::Sequence fork = start_.fork();
    time_append(fork, cycles_.front());
  }
  next_ = (next_ + 1) % shape_.cycle();
  if (next_ == 0) end_cycle();
}

void TimedAppend::end_cycle() {
  for (Cycle& cycle : cycles_) {
    cycle_means_.push_back(cycle.device / shape_.cycle());
    host_cycle_means_.push_back(cycle.host / shape_.cycle());
    cycle = {};
  }
}

void TimedAppend::clear() {
  calls_.clear();
  cycle_means_.clear();
  host_cycle_means_.clear();
}

AppendTiming TimedAppend::timing() const {
  return {.call = summary(calls_), .mean = median(cycle_means_), .host_mean = median(host_cycle_means_)};
}

std::vector<AppendTiming> time_interleaved(std::span<TimedAppend> subjects, const AppendShape& shape,
                                           Progress& progress) {
  // Warm-up, a whole cycle: forks get pages of their own and room in their lists, which long sequences have.
  for (TimedAppend& subject : subjects) {
    for (int32_t call = 0; call < shape.cycle(); ++call) subject.run();
    subject.clear();
  }
  repeat_in_turn(subjects.size(), shape.cycle(), progress, [&](size_t i) { subjects[i].run(); });
  std::vector<AppendTiming> timings;
  for (const TimedAppend& subject : subjects) timings.push_back(subject.timing());
  return timings;
}

uint64_t timing_memory(const TimedDevice& device, const AppendShape& shape, size_t subjects) {
  constexpr uint64_t kRunTokens = uint64_t{32} * KVQ_PAGE_SLOTS;  // pages that a sequence may reserve
  const auto length = static_cast<uint64_t>(shape.length);
  const uint64_t lists = length / KVQ_PAGE_SLOTS * static_cast<uint64_t>(shape.layer.kv_heads) * sizeof(void*);
  const uint64_t cycles = shape.is_decoding() ? kMaxRepetitions / static_cast<uint64_t>(shape.cycle()) + 2 : 1;
  const uint64_t own_tokens = cycles * shape.cycle_tokens() + kRunTokens;
  const uint64_t token_bytes = shape.layer.fp16_token_bytes();
  const uint64_t input = 2 * shape.cycle_tokens() * shape.layer.token_width() * bytes_of(shape.dtype);
  return input +
         subjects * (length * token_bytes + sequences_in_turn(device, shape) * (own_tokens * token_bytes + 2 * lists));
}

}  // namespace cli
