// Pools: tokens in memory of the program, found by its block tables.
#include "model.h"

#include <array>
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>

namespace pool_test {

constexpr int32_t kLayers = 2;

// So many bytes at a multiple of 64.
class Memory {
 public:
  explicit Memory(int64_t bytes) : lines_(static_cast<size_t>(bytes + 63) / 64) {}
  void* data() { return lines_.data(); }

 private:
  struct alignas(64) Line {
    std::array<std::byte, 64> bytes = {};
  };
  std::vector<Line> lines_;
};

kvq::Cache pool_cache(const kvq::Context& context) {
  return small_cache(context, "{version: 1, keys: int4, values: gs4, sink: 0, calibrate: none}", kLayers);
}

/// A program's side of a pool of 16 blocks and 3 tails.
class Engine {
 public:
  explicit Engine(kvq::Cache& cache, int32_t n_ranges = 1) {
    const kvq_block_layout layout = cache.block_layout(0, 32);
    std::vector<kvq_block_range> ranges;
    std::vector<void*> tails;
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      for (int32_t i = 0; i < n_ranges; ++i) {
        auto one = kvq::initialised<kvq_block_range>();
        one.n_blocks = 16 / n_ranges;
        one.stride = layout.block_bytes + 64;
        one.data = memory(one.n_blocks * one.stride);
        ranges.push_back(one);
      }
      tails.push_back(memory(3 * layout.tail_bytes));
    }
    auto options = kvq::initialised<kvq_pool_options>();
    options.block_tokens = 32;
    options.n_ranges = n_ranges;
    options.n_tails = 3;
    options.ranges = ranges.data();
    options.tails = tails.data();
    options.n_layers = kLayers;
    pool = kvq::Pool(cache, options);
    auto limits = kvq::initialised<kvq_pool_limits>();
    limits.max_sequences = 3;
    limits.max_tokens = 200;
    limits.max_blocks = 8;
    plan = kvq::PoolPlan(pool, limits);
  }

  /// Plans tokens of sequences of up to five blocks each.
  void batch(const std::vector<int32_t>& counts, const std::vector<int32_t>& lengths) {
    const auto n = static_cast<int32_t>(counts.size());
    std::vector<int32_t> starts{0}, table, tails;
    std::partial_sum(counts.begin(), counts.end(), std::back_inserter(starts));
    for (int32_t row = 0; row < n; ++row) {
      for (int32_t block = 0; block < 5; ++block) table.push_back(block * n + row);
      tails.push_back(n - 1 - row);
    }
    plan.batch({.query_starts = starts, .lengths = lengths, .block_table = table, .table_stride = 5, .tails = tails});
  }

 private:
  void* memory(int64_t bytes) { return memory_.emplace_back(std::make_unique<Memory>(bytes))->data(); }

  std::vector<std::unique_ptr<Memory>> memory_;

 public:
  kvq::Pool pool;
  kvq::PoolPlan plan;
};

TEST_CASE("a pool has the results of the cache") {
  for (const int32_t n_ranges : {1, 4}) {
    const kvq::Context context;
    kvq::Cache cache = pool_cache(context);
    Engine engine(cache, n_ranges);
    std::array sequences{kvq::Sequence(cache), kvq::Sequence(cache), kvq::Sequence(cache)};
    std::vector<int32_t> lengths(3);
    uint64_t seed = 1;
    for (const std::vector<int32_t>& counts : {std::vector{40, 3, 70}, {1, 1, 1}, {20, 30, 2}, {1, 1, 1}}) {
      for (size_t i = 0; i < counts.size(); ++i) lengths[i] += counts[i];
      engine.batch(counts, lengths);
      const int32_t n = std::accumulate(counts.begin(), counts.end(), 0);
      for (int32_t layer = 0; layer < kLayers; ++layer) {
        const std::vector<float> k = tokens(n, seed++), v = tokens(n, seed++), q = queries(n, seed++);
        std::vector<float> out(q.size()), expected(q.size()), lse(static_cast<size_t>(n) * kQueryHeads, NAN);
        engine.plan.extend(layer, {.k = k, .v = v, .q = q, .output = out, .lse = lse});
        cache.extend(layer, {.sequences = kvq::pointers(sequences),
                             .token_counts = counts,
                             .k = k,
                             .v = v,
                             .q = q,
                             .output = expected});
        CHECK(out == expected);
        CHECK(std::isfinite(lse.front()));
        CHECK(std::isfinite(lse.back()));
      }
    }
    CHECK(engine.plan.bytes() > 0);
  }
}

TEST_CASE("a block goes to another pool") {
  const kvq::Context context;
  kvq::Cache cache = pool_cache(context);
  std::array engines{std::make_unique<Engine>(cache), std::make_unique<Engine>(cache)};
  engines[0]->batch({64}, {64});
  engines[0]->plan.append(0, {.k = tokens(64, 1), .v = tokens(64, 2)});
  for (const int32_t block : {0, 1}) {
    engines[1]->pool.write_block(0, block, engines[0]->pool.read_block(0, block));
  }
  const std::vector<float> k = tokens(1, 3), v = tokens(1, 4), q = queries(1, 5);
  std::array outputs{std::vector<float>(q.size()), std::vector<float>(q.size(), 1.0F)};
  for (size_t i = 0; i < 2; ++i) {
    engines[i]->batch({1}, {65});
    engines[i]->plan.append(0, {.k = k, .v = v});
    engines[i]->plan.attend(0, {.q = q, .output = outputs[i]});
  }
  CHECK(outputs[0] == outputs[1]);
  std::vector<std::byte> bytes = engines[0]->pool.read_block(0, 0);
  CHECK(static_cast<int64_t>(bytes.size()) == cache.block_layout(0, 32).block_bytes);
  std::fill(bytes.begin(), bytes.end(), std::byte{0x7c});
  CHECK_FAILS(KVQ_E_FORMAT, "no encoder writes", engines[0]->pool.write_block(0, 0, bytes));
}

TEST_CASE("sizes of pools are checked") {
  const kvq::Context context;
  kvq::Cache cache = pool_cache(context);
  Engine engine(cache);
  kvq::PoolPlan& plan = engine.plan;
  const std::vector<float> k = tokens(5, 1), v = tokens(5, 2), q = queries(5, 3);
  std::vector<float> out(q.size());
  const kvq::PoolCall call{.k = k, .v = v, .q = q, .output = out};
  CHECK_FAILS(KVQ_E_STATE, "plan has no batch", plan.extend(0, call));
  CHECK_FAILS(KVQ_E_ARGUMENT, "query_starts has 2 elements instead of 3", engine.batch({5}, {5, 5}));
  CHECK_FAILS(KVQ_E_ARGUMENT, "lengths[0] is 4", engine.batch({5}, {4}));
  const std::array starts{0, 5};
  const std::array five{5};
  const std::array none{0};
  const kvq::PoolBatch of_plan{.query_starts = starts, .lengths = five, .block_table = none};
  CHECK_FAILS(KVQ_E_ARGUMENT, "block_table has 1 elements instead of 8", plan.batch(of_plan));
  CHECK_FAILS(KVQ_E_ARGUMENT, "query_starts has 0 elements", plan.batch(kvq::PoolBatch{}));

  engine.batch({5}, {5});
  CHECK_FAILS(KVQ_E_ARGUMENT, "q has 256 elements instead of 320",
              plan.extend(0, {.k = k, .v = v, .q = queries(4, 3), .output = out}));
  CHECK_FAILS(KVQ_E_ARGUMENT, "batch->k is NULL", plan.append(0, kvq::PoolCall{}));
  CHECK_FAILS(KVQ_E_ARGUMENT, "layer is 2", plan.extend(2, call));
  CHECK_FAILS(KVQ_E_ARGUMENT, "layer is -1", plan.extend(-1, call));
  CHECK_FAILS(KVQ_E_ARGUMENT, "block_tokens is 33", cache.block_layout(0, 33));
  CHECK_FAILS(KVQ_E_ARGUMENT, "", kvq::Pool(cache, kvq::initialised<kvq_pool_options>()));

  engine.pool.reset();  // the plan keeps what it needs
  plan.extend(0, call);
  auto raw = kvq::initialised<kvq_pool_call>();
  raw.n_tokens = 5;
  raw.k = k.data();
  raw.v = v.data();
  raw.q = q.data();
  std::vector<float> again(out.size());
  raw.output = again.data();
  plan.extend(0, raw);
  CHECK(again == out);

  kvq::PoolPlan moved = std::move(plan);
  moved.extend(0, call);
  moved.reset();
  CHECK_FAILS(KVQ_E_ARGUMENT, "plan is NULL", moved.extend(0, call));
  CHECK_FAILS(KVQ_E_ARGUMENT, "plan is NULL", moved.batch(of_plan));
  CHECK_FAILS(KVQ_E_ARGUMENT, "plan is NULL", moved.batch(kvq::initialised<kvq_pool_batch>()));
  CHECK_FAILS(KVQ_E_ARGUMENT, "pool is NULL", engine.pool.read_block(0, 0));
  CHECK_FAILS(KVQ_E_ARGUMENT, "pool is NULL", kvq::PoolPlan(engine.pool, kvq::initialised<kvq_pool_limits>()));
}

}  // namespace pool_test
