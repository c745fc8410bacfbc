// An engine's side of a pool: memory of blocks and tails, and tables of sequences, on the context's device.
#pragma once

#include "conversation.h"
#include "support/device.h"
#include "support/guarded_memory.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace conformance {

// Numbers in the context's memory, a copy of those on the host.
template <typename T>
class Placed {
 public:
  Placed(bool on_device, std::vector<T> numbers) : numbers_(std::move(numbers)) {
    if (on_device && !numbers_.empty()) {
      copy_ = std::make_unique<kvq_test::DeviceCopy>(numbers_.data(), numbers_.size() * sizeof(T));
    }
  }
  T* data() { return copy_ != nullptr ? static_cast<T*>(copy_->data()) : numbers_.data(); }
  const std::vector<T>& read() {
    if (copy_ != nullptr) copy_->read(numbers_.data());
    return numbers_;
  }

 private:
  std::vector<T> numbers_;
  std::unique_ptr<kvq_test::DeviceCopy> copy_;
};

// A piece of memory, aligned for blocks; on a CPU in front of an unreadable page.
class PoolMemory {
 public:
  PoolMemory(bool on_device, const std::vector<unsigned char>& bytes) {
    constexpr size_t kAlignment = 64;
    if (!on_device) {
      host_ = std::make_unique<kvq_test::GuardedBlock>(bytes.size(), kAlignment);
      std::memcpy(host_->data(), bytes.data(), bytes.size());
      return;
    }
    std::vector<unsigned char> room(bytes.size() + kAlignment);
    unsigned char* aligned = room.data() + (-reinterpret_cast<uintptr_t>(room.data()) & (kAlignment - 1));
    std::copy(bytes.begin(), bytes.end(), aligned);
    copy_ = std::make_unique<kvq_test::DeviceCopy>(aligned, bytes.size());
  }
  void* data() { return copy_ != nullptr ? copy_->data() : host_->data(); }

 private:
  std::unique_ptr<kvq_test::GuardedBlock> host_;
  std::unique_ptr<kvq_test::DeviceCopy> copy_;
};

// A sequence as an engine knows it.
struct Row {
  std::vector<int32_t> blocks;
  int32_t length = 0;  // tokens before the next call
  int32_t tail = 0;
};

// New tokens of some rows, [tokens, heads, channels], and results.
struct Rows {
  std::vector<int32_t> counts;
  std::vector<float> k;
  std::vector<float> v;
  std::vector<float> q;

  int32_t n() const { return std::accumulate(counts.begin(), counts.end(), 0); }
};

// Of a layer of the plain shape.
inline Rows random_rows(const std::vector<int32_t>& counts, uint64_t seed) {
  Rows rows;
  rows.counts = counts;
  const auto n = static_cast<size_t>(rows.n());
  rows.k = kvq_test::normal_tensor(n * Shape{}.token_scalars(), 3 * seed);
  rows.v = kvq_test::normal_tensor(n * Shape{}.token_scalars(), 3 * seed + 1);
  rows.q = kvq_test::normal_tensor(n * Shape{}.query_scalars(), 3 * seed + 2);
  return rows;
}

struct PoolSizes {
  int32_t block_tokens = 32;
  int32_t n_blocks = 64;
  int32_t n_tails = 8;
  int32_t n_ranges = 1;
  int32_t max_blocks = 16;
  int32_t max_sequences = 8;
  int32_t max_tokens = 512;
  unsigned char fill = 0xA5;  // of memory that no call has written
  bool limits = false;        // batches tell the longest sequence and the most new tokens
  uint64_t noise = 0;         // seed of random bytes there instead
};

class PoolHost {
 public:
  PoolHost(kvq_cache* cache, const PoolSizes& sizes = {}) : cache_(cache), sizes_(sizes) {
    auto info = kvq_test::initialised<kvq_cache_info>();
    kvq_test::checked(kvq_cache_describe, cache, &info);
    on_device_ = kvq_test::device_shape(cache, 0).has_value();
    std::vector<kvq_block_range> ranges;
    std::vector<void*> tails;
    for (int32_t layer = 0; layer < info.n_layers; ++layer) {
      auto layout = kvq_test::initialised<kvq_block_layout>();
      kvq_test::checked(kvq_pool_layout, cache, layer, sizes.block_tokens, &layout);
      for (int32_t range = 0; range < sizes.n_ranges; ++range) {
        // The last range takes what the others leave; strides have room between blocks.
        const int32_t each = sizes.n_blocks / sizes.n_ranges;
        const int32_t n = range + 1 < sizes.n_ranges ? each : sizes.n_blocks - range * each;
        const int64_t stride = layout.block_bytes + 64 * range;
        const size_t bytes = static_cast<size_t>(stride) * static_cast<size_t>(n);
        void* data = layout.block_bytes > 0 ? memory(bytes) : nullptr;
        auto one = kvq_test::initialised<kvq_block_range>();
        one.n_blocks = n;
        one.data = data;
        one.stride = stride;
        ranges.push_back(one);
      }
      const auto tail_bytes = static_cast<size_t>(layout.tail_bytes) * static_cast<size_t>(sizes.n_tails);
      tails.push_back(tail_bytes > 0 ? memory(tail_bytes) : nullptr);
    }
    auto options = kvq_test::initialised<kvq_pool_options>();
    options.block_tokens = sizes.block_tokens;
    options.n_ranges = sizes.n_ranges;
    options.n_tails = sizes.n_tails;
    options.ranges = ranges.data();
    options.tails = tails.data();
    options.n_layers = info.n_layers;
    kvq_test::checked(kvq_pool_create, cache, &options, &pool_);
    auto limits = kvq_test::initialised<kvq_pool_limits>();
    limits.max_sequences = sizes.max_sequences;
    limits.max_tokens = sizes.max_tokens;
    limits.max_blocks = sizes.max_blocks;
    kvq_test::checked(kvq_pool_plan_create, pool_, &limits, &plan_);
    free_.resize(static_cast<size_t>(sizes.n_blocks));
    std::iota(free_.begin(), free_.end(), 0);
    std::shuffle(free_.begin(), free_.end(), std::minstd_rand(7));
  }
  ~PoolHost() {
    kvq_pool_destroy(pool_);
    kvq_pool_plan_destroy(plan_);
  }
  PoolHost(const PoolHost&) = delete;
  PoolHost& operator=(const PoolHost&) = delete;

  kvq_pool* pool() { return pool_; }
  kvq_pool_plan* plan() { return plan_; }

  // Blocks for so many tokens.
  void grow(Row& row, int32_t tokens) {
    while (static_cast<int32_t>(row.blocks.size()) * sizes_.block_tokens < tokens) {
      REQUIRE(!free_.empty());
      row.blocks.push_back(free_.back());
      free_.pop_back();
    }
  }

  // Plans new tokens of some rows, whose lengths then include them.
  void plan(std::vector<Row*> rows, const std::vector<int32_t>& counts) {
    std::vector<int32_t> starts = {0};
    std::vector<int32_t> lengths;
    std::vector<int32_t> table;
    std::vector<int32_t> tails;
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i]->length += counts[i];
      grow(*rows[i], rows[i]->length);
      starts.push_back(starts.back() + counts[i]);
      lengths.push_back(rows[i]->length);
      tails.push_back(rows[i]->tail);
      std::vector<int32_t> blocks = rows[i]->blocks;
      blocks.resize(static_cast<size_t>(sizes_.max_blocks), -1);
      table.insert(table.end(), blocks.begin(), blocks.end());
    }
    n_tokens_ = starts.back();
    starts_ = place(std::move(starts));
    lengths_ = place(std::move(lengths));
    table_ = place(std::move(table));
    tails_ = place(std::move(tails));
    auto batch = kvq_test::initialised<kvq_pool_batch>();
    batch.n_sequences = static_cast<int32_t>(rows.size());
    batch.n_tokens = n_tokens_;
    batch.query_starts = starts_->data();
    batch.lengths = lengths_->data();
    batch.block_table = table_->data();
    batch.tails = tails_->data();
    if (sizes_.limits) {
      batch.max_queries = *std::max_element(counts.begin(), counts.end());
      for (const Row* row : rows) batch.max_length = std::max(batch.max_length, row->length);
    }
    kvq_test::checked(kvq_pool_plan_batch, plan_, &batch);
  }

  // A test has planned so many new tokens itself.
  void planned(int32_t n_tokens) { n_tokens_ = n_tokens; }

  using Function = kvq_status (*)(kvq_pool_plan*, int32_t, const kvq_pool_call*, kvq_error*);

  // Calls a function on a layer for the planned tokens; returns [tokens, q_heads, value_dim].
  std::vector<float> call(Function function, int32_t layer, const Rows& rows, kvq_pool_call options) {
    auto info = kvq_test::initialised<kvq_layer_info>();
    kvq_test::checked(kvq_cache_describe_layer, cache_, layer, &info);
    Placed<float> k(on_device_, rows.k);
    Placed<float> v(on_device_, rows.v);
    Placed<float> q(on_device_, rows.q);
    const auto outputs =
        static_cast<size_t>(n_tokens_) * static_cast<size_t>(info.q_heads) * static_cast<size_t>(info.value_dim);
    Placed<float> out(on_device_, std::vector<float>(outputs, -1.0F));
    options.n_tokens = n_tokens_;
    options.k = rows.k.empty() || info.pages_of_layer != layer ? nullptr : k.data();
    options.v = rows.v.empty() || info.values_are_key_prefix != 0 ? nullptr : v.data();
    options.q = q.data();
    options.output = out.data();
    kvq_test::checked(function, plan_, layer, &options);
    return out.read();
  }
  std::vector<float> extend(int32_t layer, const Rows& rows, const kvq_pool_call& options = plain()) {
    return call(kvq_pool_extend, layer, rows, options);
  }
  void append(int32_t layer, const Rows& rows) { call(kvq_pool_append, layer, rows, plain()); }
  std::vector<float> attend(int32_t layer, const Rows& rows, const kvq_pool_call& options = plain()) {
    return call(kvq_pool_attend, layer, rows, options);
  }
  static kvq_pool_call plain() { return kvq_test::initialised<kvq_pool_call>(); }

  std::vector<unsigned char> read_block(int32_t layer, int32_t block) const {
    size_t size = 0;
    kvq_test::checked(kvq_pool_read_block, pool_, layer, block, nullptr, size_t{0}, &size);
    std::vector<unsigned char> bytes(size);
    kvq_test::checked(kvq_pool_read_block, pool_, layer, block, bytes.data(), bytes.size(), &size);
    return bytes;
  }
  void write_block(int32_t layer, int32_t block, const std::vector<unsigned char>& bytes) {
    kvq_test::checked(kvq_pool_write_block, pool_, layer, block, bytes.data(), bytes.size());
  }
  bool on_device() const { return on_device_; }

 private:
  void* memory(size_t bytes) {
    std::vector<unsigned char> content(bytes, sizes_.fill);
    if (sizes_.noise != 0) {
      std::mt19937_64 random(sizes_.noise + memory_.size());
      for (unsigned char& byte : content) byte = static_cast<unsigned char>(random());
    }
    memory_.push_back(std::make_unique<PoolMemory>(on_device_, content));
    return memory_.back()->data();
  }
  std::unique_ptr<Placed<int32_t>> place(std::vector<int32_t> numbers) const {
    return std::make_unique<Placed<int32_t>>(on_device_, std::move(numbers));
  }

  kvq_cache* cache_;
  PoolSizes sizes_;
  bool on_device_;
  std::vector<std::unique_ptr<PoolMemory>> memory_;
  std::vector<int32_t> free_;
  kvq_pool* pool_ = nullptr;
  kvq_pool_plan* plan_ = nullptr;
  int32_t n_tokens_ = 0;
  std::unique_ptr<Placed<int32_t>> starts_;
  std::unique_ptr<Placed<int32_t>> lengths_;
  std::unique_ptr<Placed<int32_t>> table_;
  std::unique_ptr<Placed<int32_t>> tails_;
};

}  // namespace conformance
