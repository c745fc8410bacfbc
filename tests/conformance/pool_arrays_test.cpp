// What a GPU makes of an engine's arrays, which no host has checked, and of limits that are hints.
#include "pool_host.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace conformance::pool_arrays_test {
namespace {

using kvq_test::Cache;
using kvq_test::Context;

struct Arrays {
  std::vector<int32_t> query_starts;
  std::vector<int32_t> lengths;
  std::vector<int32_t> table;  // rows of kRow
  std::vector<int32_t> tails;
};
constexpr int32_t kRow = 16;

// Stores and reads `n` tokens; returns outputs, where rows that nobody has written are −1.
std::vector<float> extend(PoolHost& pool, const Arrays& arrays, int32_t n, int32_t max_queries, uint64_t seed) {
  Placed<int32_t> query_starts(pool.on_device(), arrays.query_starts);
  Placed<int32_t> lengths(pool.on_device(), arrays.lengths);
  Placed<int32_t> table(pool.on_device(), arrays.table);
  Placed<int32_t> tails(pool.on_device(), arrays.tails);
  auto batch = kvq_test::initialised<kvq_pool_batch>();
  batch.n_sequences = static_cast<int32_t>(arrays.lengths.size());
  batch.n_tokens = n;
  batch.max_queries = max_queries;
  batch.query_starts = query_starts.data();
  batch.lengths = lengths.data();
  batch.block_table = table.data();
  batch.table_stride = kRow;
  batch.tails = tails.data();
  kvq_test::checked(kvq_pool_plan_batch, pool.plan(), &batch);
  pool.planned(n);
  return pool.extend(0, random_rows({n}, seed));
}

}  // namespace

TEST_CASE("pools: numbers outside of a pool name no page") {
  for (const std::string& isa : kvq_test::backends()) {
    for (const char* policy : {"fp16", "{version: 1, keys: gs4, values: int4, sink: 0}"}) {
      CAPTURE(isa);
      CAPTURE(policy);
      const Context context = kvq_test::make_context(isa.c_str());
      const Cache cache = make_cache(context, Shape{}.options(), policy);
      PoolSizes sizes;
      sizes.fill = 0;
      PoolHost pool(cache, sizes);
      if (!pool.on_device()) continue;  // the host checks arrays
      Arrays arrays;
      arrays.query_starts = {0, 1, 41, 41, 42, 45};
      arrays.lengths = {1, 40, 0, 65, 500};
      arrays.table.assign(5 * kRow, -1);
      for (int32_t i = 0; i < 16; ++i) arrays.table[static_cast<size_t>(4 * kRow + i)] = i % 2 == 0 ? 1 << 30 : 20 + i;
      arrays.table[kRow] = 5;
      arrays.table[kRow + 1] = 6;
      arrays.tails = {-7, 1, 1 << 30, 2, 3};
      for (const float out : extend(pool, arrays, 45, 0, 1)) CHECK(std::isfinite(out));
      // Everything is nonsense.
      for (int32_t round = 0; round < 3; ++round) {
        const int32_t huge = round == 0 ? INT32_MAX : (round == 1 ? INT32_MIN : 77777);
        arrays.query_starts = {huge, 0, huge, -1, 3, huge};
        arrays.lengths.assign(5, huge);
        arrays.table.assign(5 * kRow, huge);
        arrays.tails.assign(5, huge);
        for (const float out : extend(pool, arrays, 45, round, 2)) CHECK(std::isfinite(out));
      }
      // The pool serves others as before.
      arrays.query_starts = {0, 1, 2, 3, 4, 5};
      arrays.lengths.assign(5, 1);
      for (int32_t i = 0; i < 5; ++i) arrays.table[static_cast<size_t>(i * kRow)] = i;
      arrays.tails = {0, 1, 2, 3, 4};
      const std::vector<float> out = extend(pool, arrays, 5, 1, 3);
      const Rows rows = random_rows({5}, 3);
      for (size_t i = 0; i < out.size(); ++i) {
        const size_t dim = 64;
        const size_t head = i / dim % static_cast<size_t>(Shape{}.q_heads);
        const size_t token = i / dim / static_cast<size_t>(Shape{}.q_heads);
        const size_t of_kv = head * static_cast<size_t>(Shape{}.kv_heads) / static_cast<size_t>(Shape{}.q_heads);
        const float value = rows.v[(token * static_cast<size_t>(Shape{}.kv_heads) + of_kv) * dim + i % dim];
        CHECK(std::fabs(out[i] - value) < 3e-3F);
      }
    }
  }
}

TEST_CASE("pools: limits of a batch change no result") {
  const std::vector<std::vector<int32_t>> rounds = {{70, 3, 40}, {1, 1, 1}, {1, 1, 1}, {2, 1, 9}, {0, 1, 1}};
  for (const std::string& isa : kvq_test::backends()) {
    for (const char* policy : {"fp16", "{version: 1, keys: gs4, values: int4, sink: 0}"}) {
      CAPTURE(isa);
      CAPTURE(policy);
      const Context context = kvq_test::make_context(isa.c_str());
      const Cache cache = make_cache(context, Shape{}.options(), policy);
      PoolHost without(cache);
      PoolSizes sizes;
      sizes.limits = true;
      PoolHost with(cache, sizes);
      std::vector<Row> rows(3);
      std::vector<Row> limited(3);
      for (int32_t i = 0; i < 3; ++i) rows[static_cast<size_t>(i)].tail = limited[static_cast<size_t>(i)].tail = i;
      uint64_t seed = 70;
      for (const std::vector<int32_t>& counts : rounds) {
        without.plan({&rows[0], &rows[1], &rows[2]}, counts);
        with.plan({&limited[0], &limited[1], &limited[2]}, counts);
        const Rows tokens = random_rows({std::accumulate(counts.begin(), counts.end(), 0)}, seed += 3);
        const std::vector<float> expected = without.extend(0, tokens);
        const std::vector<float> found = with.extend(0, tokens);
        float largest = 0.0F;
        for (size_t i = 0; i < found.size(); ++i) largest = std::max(largest, std::fabs(found[i] - expected[i]));
        CHECK(largest < 2e-3F);
      }
    }
  }
}

}  // namespace conformance::pool_arrays_test
