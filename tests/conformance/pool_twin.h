// Sequences of a cache beside those of a pool.
#pragma once

#include "pool_host.h"

#include <cmath>

namespace conformance {

// As blocks take them: any byte is the index of a centre.
inline kvq_test::Cache make_pool_cache(kvq_context* context, const std::string& policy) {
  return kvq_test::make_cache(context, Shape{}.options(), policy, kvq_test::CentreCounts{256, 1});
}

inline Rows tokens_of(const kvq_cache* cache, int32_t layer, std::vector<int32_t> counts, uint64_t seed) {
  auto info = kvq_test::initialised<kvq_layer_info>();
  kvq_test::checked(kvq_cache_describe_layer, cache, layer, &info);
  Rows rows;
  rows.counts = std::move(counts);
  const auto n = static_cast<size_t>(rows.n());
  const auto numbers = [n](int32_t heads, int32_t channels) {
    return n * static_cast<size_t>(heads) * static_cast<size_t>(channels);
  };
  rows.k = kvq_test::normal_tensor(numbers(info.kv_heads, info.key_dim), 3 * seed);
  rows.v = kvq_test::normal_tensor(numbers(info.kv_heads, info.value_dim), 3 * seed + 1);
  rows.q = kvq_test::normal_tensor(numbers(info.q_heads, info.key_dim), 3 * seed + 2);
  return rows;
}

// Sequences of the cache that get the same tokens.
class Twin {
 public:
  Twin(const kvq_test::Cache& cache, size_t n) : cache_(cache) {
    for (size_t i = 0; i < n; ++i) sequences.emplace_back(cache);
  }

  std::vector<float> extend(int32_t layer, const Rows& rows, const kvq_pool_call& options = PoolHost::plain()) {
    const auto pointers = kvq::pointers(sequences);
    auto batch = kvq_test::initialised<kvq_extend_batch>();
    batch.n_sequences = static_cast<int32_t>(pointers.size());
    batch.sequences = pointers.data();
    batch.token_counts = rows.counts.data();
    batch.k = rows.k.data();
    batch.v = rows.v.empty() ? nullptr : rows.v.data();
    batch.q = rows.q.data();
    batch.sliding_window = options.sliding_window;
    batch.logit_softcap = options.logit_softcap;
    batch.mask = options.mask;
    batch.mask_slots = options.mask_slots;
    batch.sinks = options.sinks;
    batch.lse = options.lse;
    std::vector<float> out(outputs(layer, rows));
    batch.output = out.data();
    kvq_test::extend(cache_, layer, batch);
    return out;
  }
  std::vector<float> attend(int32_t layer, const Rows& rows) {
    std::vector<const kvq_sequence*> pointers;
    for (const kvq_test::Sequence& each : sequences) pointers.push_back(each);
    auto batch = kvq_test::initialised<kvq_attend_batch>();
    batch.n_sequences = static_cast<int32_t>(pointers.size());
    batch.sequences = pointers.data();
    batch.query_counts = rows.counts.data();
    batch.q = rows.q.data();
    std::vector<float> out(outputs(layer, rows));
    batch.output = out.data();
    kvq_test::attend(cache_, layer, batch);
    return out;
  }

  std::vector<kvq_test::Sequence> sequences;

 private:
  size_t outputs(int32_t layer, const Rows& rows) const {
    const kvq_layer_info info = cache_.describe_layer(layer);
    return static_cast<size_t>(rows.n()) * static_cast<size_t>(info.q_heads) * static_cast<size_t>(info.value_dim);
  }

  const kvq_test::Cache& cache_;
};

inline std::vector<Row*> pointers_to(std::vector<Row>& rows) {
  std::vector<Row*> pointers;
  for (Row& row : rows) pointers.push_back(&row);
  return pointers;
}

inline std::vector<Row> make_rows(int32_t n) {
  std::vector<Row> rows(static_cast<size_t>(n));
  for (int32_t i = 0; i < n; ++i) rows[static_cast<size_t>(i)].tail = (5 * i + 3) % n;  // 5 and n have no common factor
  return rows;
}

// GPUs divide the pages of pools and caches otherwise among their processors, so sums may round otherwise.
inline void check_same(const std::vector<float>& found, const std::vector<float>& expected, bool on_device) {
  REQUIRE(found.size() == expected.size());
  if (!on_device) {
    CHECK(found == expected);
    return;
  }
  double largest = 0.0;
  for (size_t i = 0; i < found.size(); ++i) {
    largest = std::max(largest, std::fabs(static_cast<double>(found[i]) - static_cast<double>(expected[i])));
  }
  CHECK(largest < 2e-3);
}

}  // namespace conformance
