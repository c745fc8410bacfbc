// Calls on pools that only a GPU divides.
#include "gpu.h"
#include "pool_host.h"
#include "support/reference.h"

#include <cmath>

namespace conformance::cuda_pools_test {
namespace {

constexpr int32_t kPrefix = 40960;
constexpr int32_t kChunk = 170;

// The rows of one of several sequences with as many tokens each.
Rows part_of(const Rows& all, size_t i) {
  const auto part = [&](const std::vector<float>& from) {
    const size_t size = from.size() / all.counts.size();
    const auto begin = from.begin() + static_cast<std::ptrdiff_t>(i * size);
    return std::vector<float>(begin, begin + static_cast<std::ptrdiff_t>(size));
  };
  return {{all.counts[i]}, part(all.k), part(all.v), part(all.q)};
}

}  // namespace

TEST_CASE("pools: chunks whose pages do not fit at once where they are decoded give what each gives alone") {
  if (skips()) return;
  // 24 sequences with a prefix of 128 MB in FP16.
  constexpr int32_t kSequences = 24;
  const kvq_test::Context context = kvq_test::make_context("cuda");
  const kvq_test::Cache cache =
      kvq_test::make_cache(context, Shape{}.options(), "{version: 1, keys: gs4, values: gs2, sink: 0}");
  PoolSizes sizes;
  sizes.max_sequences = sizes.n_tails = kSequences;
  sizes.max_blocks = kPrefix / 32 + 10;
  sizes.n_blocks = sizes.max_blocks + kSequences * 10;
  sizes.max_tokens = 8192;
  PoolHost pool(cache, sizes);
  std::vector<Row> rows(kSequences);
  std::vector<Row*> all;
  for (int32_t i = 0; i < kSequences; ++i) {
    rows[static_cast<size_t>(i)].tail = i;
    all.push_back(&rows[static_cast<size_t>(i)]);
  }
  for (int32_t done = 0; done < kPrefix; done += sizes.max_tokens) {
    const Rows tokens = random_rows({sizes.max_tokens}, static_cast<uint64_t>(done));
    pool.plan({all[0]}, tokens.counts);
    pool.append(0, tokens);
  }
  for (Row* row : all) {
    row->blocks = std::vector<int32_t>(all[0]->blocks.begin(), all[0]->blocks.begin() + kPrefix / 32);
    row->length = kPrefix;
  }
  const Rows tokens = random_rows(std::vector<int32_t>(kSequences, kChunk), 3);
  pool.plan(all, tokens.counts);
  const std::vector<float> together = pool.extend(0, tokens);
  double largest = 0.0;
  for (size_t i = 0; i < all.size(); ++i) {
    all[i]->length = kPrefix;
    const Rows part = part_of(tokens, i);
    pool.plan({all[i]}, part.counts);
    const std::vector<float> alone = pool.extend(0, part);
    for (size_t j = 0; j < alone.size(); ++j) {
      largest = std::max(largest, std::fabs(static_cast<double>(alone[j] - together[i * alone.size() + j])));
    }
  }
  CHECK(largest < 2e-4);
}

}  // namespace conformance::cuda_pools_test
