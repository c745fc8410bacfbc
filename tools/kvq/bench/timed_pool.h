#pragma once

#include "bench/timed_calls.h"

namespace cli {

/// Sequences of a shape in blocks, each of a page for all KV heads, in random order.
struct PoolShape {
  AttentionShape attention{};
  bool ragged = false;   // sequences have from 64 tokens to `length`, evenly on a logarithmic scale
  bool extends = false;  // the newest tokens are stored in the same call
};

/// Attention of one layer over pages in memory of the caller, found by a block table, ready to be timed. Planning,
/// which serves all layers of a model, is not. Holds as many equal batches as TimedAttention does caches.
class TimedPool {
 public:
  /// `context` computes on `device`.
  TimedPool(TimedDevice& device, kvq_context* context, const Spec& format, const PoolShape& shape);

  /// One call on the next of the batches with the next of the queries, in microseconds.
  double run();

  /// Bytes of the blocks and tails that one call reads, and bits of a scalar.
  uint64_t bytes() const { return bytes_; }
  double bits() const { return bits_; }

 private:
  template <auto destroy>
  struct Destroy {
    template <class Handle>
    void operator()(Handle* handle) const {
      destroy(handle);
    }
  };
  using Pool = std::unique_ptr<kvq_pool, Destroy<kvq_pool_destroy>>;
  using Plan = std::unique_ptr<kvq_pool_plan, Destroy<kvq_pool_plan_destroy>>;

  /// A batch in blocks of its own.
  struct Batch {
    Plan plan;
    DeviceBuffer numbers{nullptr, nullptr};  // starts, lengths, tails, table
  };

  DeviceBuffer memory(size_t bytes, void*& aligned);
  DeviceBuffer place(const std::vector<int32_t>& numbers) const;
  void make_pool(size_t copies);
  kvq_pool_batch batch_of(const DeviceBuffer& numbers, int32_t n) const;
  void add_batch(std::span<const int32_t> blocks);
  void fill(std::span<const int32_t> blocks, int32_t sequence);
  void call(const Batch& batch, const DeviceBuffer& queries);

  TimedDevice* device_;
  PoolShape shape_;
  kvq::Cache cache_;
  std::vector<int32_t> lengths_;
  int32_t most_blocks_ = 1;  // of a sequence
  size_t n_blocks_ = 0;      // of a batch
  DeviceBuffer blocks_{nullptr, nullptr};
  DeviceBuffer tails_{nullptr, nullptr};
  Pool pool_;
  std::vector<Batch> batches_;
  std::vector<DeviceBuffer> queries_;  // [batch, queries, q_heads, head_dim] each, used in turn
  DeviceBuffer keys_;                  // [tokens, kv_heads, head_dim] of any call
  DeviceBuffer values_;
  DeviceBuffer out_;
  size_t runs_ = 0;
  uint64_t bytes_ = 0;
  double bits_ = 0.0;
};

/// Bytes of the device that timing `subjects` subjects of this shape may take, at most.
uint64_t timing_memory(const TimedDevice& device, const PoolShape& shape, size_t subjects);

}  // namespace cli
