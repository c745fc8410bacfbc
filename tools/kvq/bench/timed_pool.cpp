#include "bench/timed_pool.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace cli {
namespace {

constexpr int32_t kBlockTokens = KVQ_PAGE_SLOTS;
constexpr int32_t kChunk = 4096;      // tokens that are stored at once
constexpr int32_t kLeastLength = 64;  // of ragged sequences
constexpr size_t kMostBatches = 256;
constexpr uint64_t kKeySeed = 31;
constexpr uint64_t kValueSeed = 32;

int32_t blocks_for(int32_t tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }

std::vector<int32_t> lengths_of(const PoolShape& shape) {
  const auto n = static_cast<size_t>(shape.attention.batch);
  std::vector<int32_t> lengths(n, shape.attention.length);
  const double longest = shape.attention.length;
  const double least = std::min<double>(kLeastLength, longest);
  for (size_t i = 0; shape.ragged && i < n; ++i) {
    const double share = n > 1 ? static_cast<double>(i) / static_cast<double>(n - 1) : 1.0;
    lengths[i] = static_cast<int32_t>(std::lround(least * std::pow(longest / least, share)));
  }
  std::shuffle(lengths.begin(), lengths.end(), std::minstd_rand(5));
  return lengths;
}

/// Tokens of the largest call.
size_t tokens_of(const PoolShape& shape) {
  return std::max(static_cast<size_t>(kChunk),
                  static_cast<size_t>(shape.attention.batch) * static_cast<size_t>(shape.attention.queries));
}

}  // namespace

TimedPool::TimedPool(TimedDevice& device, kvq_context* context, const Spec& format, const PoolShape& shape)
    : device_(&device),
      shape_(shape),
      cache_(cache_of_layers(context, format, shape.attention.layer)),
      lengths_(lengths_of(shape)),
      queries_(queries_in_turn(device, shape.attention)),
      keys_(random_scalars(device, tokens_of(shape) * shape.attention.layer.token_width(), kKeySeed)),
      values_(random_scalars(device, tokens_of(shape) * shape.attention.layer.value_width(), kValueSeed)),
      out_(device.upload(std::vector<std::byte>(output_scalars(shape.attention) * sizeof(float)))) {
  const LayerShape& layer = shape.attention.layer;
  auto layout = kvq::initialised<kvq_block_layout>();
  kvq::checked(kvq_pool_layout, cache_, 0, kBlockTokens, &layout);
  uint64_t tokens = 0;
  for (const int32_t length : lengths_) {
    n_blocks_ += static_cast<size_t>(blocks_for(length));
    most_blocks_ = std::max(most_blocks_, blocks_for(length));
    tokens += static_cast<uint64_t>(length);
    const bool open = length % kBlockTokens != 0 && layout.tail_bytes > 0;
    bytes_ += static_cast<uint64_t>(blocks_for(length) - (open ? 1 : 0)) * static_cast<uint64_t>(layout.block_bytes);
    if (open) bytes_ += static_cast<uint64_t>(layout.tail_bytes);
  }
  bits_ = 16.0 * static_cast<double>(bytes_) / static_cast<double>(tokens * layer.fp16_token_bytes());
  const uint64_t wanted = std::min(device.bytes_to_rotate(false), shape.attention.most_bytes);
  const size_t copies = std::clamp<size_t>((wanted + bytes_ - 1) / bytes_, 1, kMostBatches);
  make_pool(copies);
  std::vector<int32_t> order(n_blocks_ * copies);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::minstd_rand(9));
  for (size_t i = 0; i < copies; ++i) add_batch(std::span(order).subspan(i * n_blocks_, n_blocks_));
}

/// Memory as blocks need it.
DeviceBuffer TimedPool::memory(size_t bytes, void*& aligned) {
  constexpr size_t kAlignment = 64;
  DeviceBuffer buffer = device_->upload(std::vector<std::byte>(bytes + kAlignment));
  aligned = static_cast<std::byte*>(buffer.get()) + (-reinterpret_cast<uintptr_t>(buffer.get()) & (kAlignment - 1));
  return buffer;
}

void TimedPool::make_pool(size_t copies) {
  auto layout = kvq::initialised<kvq_block_layout>();
  kvq::checked(kvq_pool_layout, cache_, 0, kBlockTokens, &layout);
  auto range = kvq::initialised<kvq_block_range>();
  range.n_blocks = static_cast<int32_t>(n_blocks_ * copies);
  blocks_ = memory(n_blocks_ * copies * static_cast<size_t>(layout.block_bytes), range.data);
  void* tails = nullptr;
  const size_t n_tails = lengths_.size() * copies;
  if (layout.tail_bytes > 0) tails_ = memory(n_tails * static_cast<size_t>(layout.tail_bytes), tails);
  auto options = kvq::initialised<kvq_pool_options>();
  options.block_tokens = kBlockTokens;
  options.n_layers = 1;
  options.ranges = &range;
  options.n_tails = static_cast<int32_t>(n_tails);
  options.tails = &tails;
  kvq_pool* pool = nullptr;
  kvq::checked(kvq_pool_create, cache_, &options, &pool);
  pool_.reset(pool);
}

DeviceBuffer TimedPool::place(const std::vector<int32_t>& numbers) const {
  return device_->upload(std::as_bytes(std::span(numbers)));
}

/// Of numbers as add_batch() and fill() place them.
kvq_pool_batch TimedPool::batch_of(const DeviceBuffer& numbers, int32_t n) const {
  const auto* first = static_cast<const int32_t*>(numbers.get());
  auto batch = kvq::initialised<kvq_pool_batch>();
  batch.n_sequences = n;
  batch.query_starts = first;
  batch.lengths = first + n + 1;
  batch.tails = batch.lengths + n;
  batch.block_table = batch.tails + n;
  batch.table_stride = most_blocks_;
  return batch;
}

/// Stores random tokens in a batch of blocks, and plans its newest queries.
void TimedPool::add_batch(std::span<const int32_t> blocks) {
  const auto n = static_cast<int32_t>(lengths_.size());
  const auto first_tail = static_cast<int32_t>(batches_.size()) * n;
  std::vector<int32_t> starts = {0};
  std::vector<int32_t> tails;
  std::vector<int32_t> table;
  size_t next = 0;
  for (int32_t i = 0; i < n; ++i) {
    const auto count = static_cast<size_t>(blocks_for(lengths_[static_cast<size_t>(i)]));
    fill(blocks.subspan(next, count), i);
    starts.push_back(starts.back() + shape_.attention.queries);
    tails.push_back(first_tail + i);
    table.insert(table.end(), blocks.begin() + static_cast<std::ptrdiff_t>(next),
                 blocks.begin() + static_cast<std::ptrdiff_t>(next + count));
    table.resize(static_cast<size_t>(i + 1) * static_cast<size_t>(most_blocks_), -1);
    next += count;
  }
  std::vector<int32_t> numbers = starts;
  for (const auto* each : {&lengths_, &tails, &table}) numbers.insert(numbers.end(), each->begin(), each->end());
  auto limits = kvq::initialised<kvq_pool_limits>();
  limits.max_sequences = n;
  limits.max_tokens = starts.back();
  limits.max_queries = shape_.attention.queries;
  limits.max_blocks = most_blocks_;
  kvq_pool_plan* plan = nullptr;
  kvq::checked(kvq_pool_plan_create, pool_.get(), &limits, &plan);
  Batch& made = batches_.emplace_back();
  made.plan.reset(plan);
  made.numbers = place(numbers);
  kvq_pool_batch batch = batch_of(made.numbers, n);
  batch.n_tokens = starts.back();
  batch.max_length = std::ranges::max(lengths_);
  kvq::checked(kvq_pool_plan_batch, plan, &batch);
}

void TimedPool::fill(std::span<const int32_t> blocks, int32_t sequence) {
  const int32_t length = lengths_[static_cast<size_t>(sequence)];
  const auto tail = static_cast<int32_t>(batches_.size() * lengths_.size()) + sequence;
  auto limits = kvq::initialised<kvq_pool_limits>();
  limits.max_sequences = 1;
  limits.max_tokens = std::min(kChunk, length);
  limits.max_blocks = most_blocks_;
  kvq_pool_plan* made = nullptr;
  kvq::checked(kvq_pool_plan_create, pool_.get(), &limits, &made);
  const Plan plan(made);
  for (int32_t begin = 0; begin < length; begin += kChunk) {
    const int32_t n = std::min(kChunk, length - begin);
    std::vector<int32_t> numbers = {0, n, begin + n, tail};
    numbers.insert(numbers.end(), blocks.begin(), blocks.end());
    numbers.resize(4 + static_cast<size_t>(most_blocks_), -1);
    const DeviceBuffer placed = place(numbers);
    kvq_pool_batch batch = batch_of(placed, 1);
    batch.n_tokens = n;
    kvq::checked(kvq_pool_plan_batch, made, &batch);
    auto tokens = kvq::initialised<kvq_pool_call>();
    tokens.n_tokens = n;
    tokens.k = keys_.get();
    tokens.v = shape_.attention.layer.latent ? nullptr : values_.get();
    kvq::checked(kvq_pool_append, made, 0, &tokens);
    device_->time([] {});  // `placed` is read until then
  }
}

void TimedPool::call(const Batch& batch, const DeviceBuffer& queries) {
  auto call = kvq::initialised<kvq_pool_call>();
  call.n_tokens = shape_.attention.batch * shape_.attention.queries;
  call.q = queries.get();
  call.output = out_.get();
  if (!shape_.extends) return kvq::checked(kvq_pool_attend, batch.plan.get(), 0, &call);
  call.k = keys_.get();
  call.v = shape_.attention.layer.latent ? nullptr : values_.get();
  kvq::checked(kvq_pool_extend, batch.plan.get(), 0, &call);
}

double TimedPool::run() {
  const Batch& batch = batches_[runs_ % batches_.size()];
  const DeviceBuffer& queries = queries_[runs_ % queries_.size()];
  ++runs_;
  if (device_->forgets_instructions()) call(batch, queries);
  return device_->time([&] { call(batch, queries); });
}

uint64_t timing_memory(const TimedDevice& device, const PoolShape& shape, size_t subjects) {
  uint64_t tokens = 0;
  for (const int32_t length : lengths_of(shape)) tokens += static_cast<uint64_t>(length);
  return subjects * (shape.attention.layer.fp16_token_bytes() * tokens + device.bytes_to_rotate(false));
}

}  // namespace cli
