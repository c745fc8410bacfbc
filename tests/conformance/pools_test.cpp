// Pages in the host's memory: the bits of the cache, whatever blocks and tables are like.
#include "pool_twin.h"
#include "support/build.h"
#include "support/reference.h"

#include <doctest/doctest.h>

#include <cmath>
#include <string>

namespace conformance::pools_test {
namespace {

using kvq_test::Cache;
using kvq_test::Context;

// Every format, mixed ones too; all pages but the open one are sealed.
std::vector<std::string> pool_policies() {
  return {"fp16",
          "{version: 1, keys: int8, values: int8, sink: 0}",
          "{version: 1, keys: int4+hadamard, values: int2, sink: 0}",
          "{version: 1, keys: int3, values: int4, sink: 0}",
          "{version: 1, keys: gs4, values: gs4, sink: 0}",
          "{version: 1, keys: gs2, values: gs1, sink: 0}",
          "{version: 1, keys: gt2, values: gt3, sink: 0}",
          "{version: 1, keys: gs4+centres, values: gt1+centres, sink: 0}",
          "version: 1\nkeys: int8\nvalues: gs3\nsink: 0\nlayers:\n  - {range: [1, 1], keys: fp16, values: fp16}\n"};
}

// Chunks that fill, open and seal pages, in decoding and in prompts. Of more than 32 tokens none begins after a full
// page: a cache has that in FP16 until the next token has come.
std::vector<std::vector<int32_t>> rounds() {
  return {{1, 33, 70}, {1, 1, 1}, {31, 64, 2}, {40, 3, 1}, {1, 27, 32}, {22, 1, 20}, {1, 1, 2}, {1, 90, 3}, {1, 1, 1}};
}

}  // namespace

TEST_CASE("pools: the results of the cache, for blocks of any size, order and range") {
  for (const std::string& isa : kvq_test::backends()) {
    for (const std::string& policy : pool_policies()) {
      for (const int32_t block_tokens : {32, 96}) {
        CAPTURE(isa);
        CAPTURE(policy);
        CAPTURE(block_tokens);
        const Context context = kvq_test::make_context(isa.c_str(), 2);
        const Cache cache = make_pool_cache(context, policy);
        PoolSizes sizes;
        sizes.block_tokens = block_tokens;
        sizes.n_ranges = block_tokens == 32 ? 1 : 3;
        PoolHost pool(cache, sizes);
        Twin twin(cache, 3);
        std::vector<Row> rows = make_rows(3);
        uint64_t seed = 1;
        for (const std::vector<int32_t>& counts : rounds()) {
          pool.plan(pointers_to(rows), counts);
          for (int32_t layer = 0; layer < Shape{}.n_layers; ++layer) {
            const Rows tokens = tokens_of(cache, layer, counts, ++seed);
            check_same(pool.extend(layer, tokens), twin.extend(layer, tokens), pool.on_device());
          }
        }
        // What is stored is the same, too, in appending without attention.
        const std::vector<int32_t> counts = {3, 5, 61};
        pool.plan(pointers_to(rows), counts);
        const Rows tokens = tokens_of(cache, 0, counts, ++seed);
        pool.append(0, tokens);
        twin.extend(0, tokens);
        check_same(pool.attend(0, tokens), twin.attend(0, tokens), pool.on_device());
      }
    }
  }
}

TEST_CASE("pools: attention of float64 over what was given") {
  for (const std::string& isa : kvq_test::backends()) {
    CAPTURE(isa);
    const Context context = kvq_test::make_context(isa.c_str());
    const Cache cache = make_cache(context, Shape{}.options(), "fp16");
    PoolHost pool(cache);
    std::vector<Row> rows = make_rows(2);
    const std::vector<int32_t> counts = {77, 130};
    pool.plan(pointers_to(rows), counts);
    const Rows tokens = tokens_of(cache, 0, counts, 4);
    const std::vector<float> out = pool.extend(0, tokens);
    const Shape shape;
    const kvq_test::Rotation rotation = kvq_test::Rotation::from(shape.options());
    const auto dim = static_cast<size_t>(shape.head_dim);
    double largest = 0.0;
    for (int32_t i = 0; i < tokens.n(); i += 13) {
      const int32_t first = i < counts[0] ? 0 : counts[0];
      for (int32_t head = 0; head < shape.q_heads; ++head) {
        const size_t row =
            (static_cast<size_t>(i) * static_cast<size_t>(shape.q_heads) + static_cast<size_t>(head)) * dim;
        std::vector<float> k;
        std::vector<float> v;
        std::vector<int32_t> positions;
        for (int32_t token = first; token <= i; ++token) {
          const size_t at = (static_cast<size_t>(token) * static_cast<size_t>(shape.kv_heads) +
                             static_cast<size_t>(head * shape.kv_heads / shape.q_heads)) *
                            dim;
          std::vector<double> key(tokens.k.begin() + static_cast<std::ptrdiff_t>(at),
                                  tokens.k.begin() + static_cast<std::ptrdiff_t>(at + dim));
          rotation.apply(key, token - first);
          k.insert(k.end(), key.begin(), key.end());
          v.insert(v.end(), tokens.v.begin() + static_cast<std::ptrdiff_t>(at),
                   tokens.v.begin() + static_cast<std::ptrdiff_t>(at + dim));
          positions.push_back(token - first);
        }
        std::vector<double> q(tokens.q.begin() + static_cast<std::ptrdiff_t>(row),
                              tokens.q.begin() + static_cast<std::ptrdiff_t>(row + dim));
        rotation.apply(q, i - first);
        const std::vector<double> expected = kvq_test::attention<float>(
            {.scale = 1.0 / std::sqrt(static_cast<double>(shape.head_dim))}, q, i - first, k, v, positions);
        for (size_t c = 0; c < dim; ++c) {
          largest = std::max(largest, std::fabs(static_cast<double>(out[row + c]) - expected[c]));
        }
      }
    }
    CHECK(largest < 3e-3);
  }
}

TEST_CASE("pools: full blocks serve several sequences, and copies serve like originals") {
  for (const std::string& isa : kvq_test::backends()) {
    CAPTURE(isa);
    const Context context = kvq_test::make_context(isa.c_str());
    const Cache cache = make_cache(context, Shape{}.options(), "{version: 1, keys: gs4, values: int4, sink: 0}");
    PoolHost pool(cache);
    Twin twin(cache, 2);
    std::vector<Row> rows = make_rows(2);
    // The second sequence begins with the first two blocks of the first one.
    const Rows prompt = tokens_of(cache, 0, {70, 70}, 3);
    pool.plan({&rows[0]}, {70});
    Rows half = prompt;
    half.counts = {70};
    half.k.resize(half.k.size() / 2);
    half.v.resize(half.v.size() / 2);
    half.q.resize(half.q.size() / 2);
    pool.extend(0, half);
    rows[1].blocks = {rows[0].blocks[0], rows[0].blocks[1]};
    rows[1].length = 64;
    Rows same = half;
    same.counts = {70, 70};
    for (std::vector<float>* each : {&same.k, &same.v, &same.q}) each->insert(each->end(), each->begin(), each->end());
    twin.extend(0, same);
    // Its other six tokens come alone.
    Rows rest;
    rest.counts = {6};
    const auto last = [](const std::vector<float>& all, size_t heads) {
      return std::vector<float>(all.end() - static_cast<std::ptrdiff_t>(6 * heads * 64), all.end());
    };
    rest.k = last(half.k, 2);
    rest.v = last(half.v, 2);
    rest.q = last(half.q, 4);
    pool.plan({&rows[1]}, {6});
    pool.extend(0, rest);
    const Rows next = tokens_of(cache, 0, {1, 2}, 8);
    pool.plan(pointers_to(rows), next.counts);
    check_same(pool.extend(0, next), twin.extend(0, next), pool.on_device());
    // A block that went to host memory and back, elsewhere.
    const std::vector<unsigned char> bytes = pool.read_block(0, rows[0].blocks[1]);
    CHECK(std::any_of(bytes.begin(), bytes.end(), [](unsigned char each) { return each != 0xA5; }));
    Row moved = rows[0];
    moved.blocks[1] = 0;
    while (std::count(rows[0].blocks.begin(), rows[0].blocks.end(), moved.blocks[1]) +
               std::count(rows[1].blocks.begin(), rows[1].blocks.end(), moved.blocks[1]) >
           0) {
      ++moved.blocks[1];
    }
    pool.write_block(0, moved.blocks[1], bytes);
    CHECK(pool.read_block(0, moved.blocks[1]) == bytes);
    rows[0] = moved;
    const Rows after = tokens_of(cache, 0, {1, 1}, 9);
    pool.plan(pointers_to(rows), after.counts);
    check_same(pool.extend(0, after), twin.extend(0, after), pool.on_device());
  }
}

TEST_CASE("pools: masks, windows, sinks, caps and log-sum-exps as in the cache") {
  for (const std::string& isa : kvq_test::backends()) {
    for (const char* policy : {"fp16", "{version: 1, keys: gs2, values: gs2, sink: 0}"}) {
      CAPTURE(isa);
      CAPTURE(policy);
      const Context context = kvq_test::make_context(isa.c_str());
      const Cache cache = make_pool_cache(context, policy);
      PoolHost pool(cache);
      Twin twin(cache, 2);
      std::vector<Row> rows = make_rows(2);
      uint64_t seed = 20;
      const auto run = [&](const std::vector<int32_t>& counts, kvq_pool_call options) {
        const Rows tokens = tokens_of(cache, 0, counts, ++seed);
        pool.plan(pointers_to(rows), counts);
        std::vector<float> expected_lse(static_cast<size_t>(tokens.n() * Shape{}.q_heads));
        options.lse = expected_lse.data();
        const std::vector<float> expected = twin.extend(0, tokens, options);
        Placed<float> lse(pool.on_device(), std::vector<float>(expected_lse.size()));
        options.lse = lse.data();
        const auto words = static_cast<size_t>(tokens.n()) * ((static_cast<size_t>(options.mask_slots) + 31) / 32);
        Placed<uint32_t> mask(pool.on_device(), options.mask != nullptr
                                                    ? std::vector<uint32_t>(options.mask, options.mask + words)
                                                    : std::vector<uint32_t>());
        Placed<float> sinks(pool.on_device(), options.sinks != nullptr
                                                  ? std::vector<float>(options.sinks, options.sinks + Shape{}.q_heads)
                                                  : std::vector<float>());
        if (options.mask != nullptr) options.mask = mask.data();
        if (options.sinks != nullptr) options.sinks = sinks.data();
        check_same(pool.extend(0, tokens, options), expected, pool.on_device());
        check_same(lse.read(), expected_lse, pool.on_device());
      };
      run({70, 45}, PoolHost::plain());
      kvq_pool_call options = PoolHost::plain();
      options.sliding_window = 40;
      options.logit_softcap = 5.0F;
      run({3, 1}, options);
      options = PoolHost::plain();
      const std::vector<float> sinks = {0.5F, -1.0F, 2.0F, -INFINITY};
      options.sinks = sinks.data();
      run({1, 2}, options);
      options = PoolHost::plain();
      // Trees of draft tokens: each sees the first one and itself, and some older tokens.
      std::vector<uint32_t> mask;
      for (int32_t i = 0; i < 9; ++i) mask.push_back(0x00FF00FFU | 1U << (24 + i % 8));
      options.mask = mask.data();
      options.mask_slots = 32;
      run({5, 4}, options);
    }
  }
}

TEST_CASE("pools: dropped tokens leave nothing") {
  for (const std::string& isa : kvq_test::backends()) {
    for (const std::string& policy : pool_policies()) {
      CAPTURE(isa);
      CAPTURE(policy);
      const Context context = kvq_test::make_context(isa.c_str());
      const Cache cache = make_pool_cache(context, policy);
      PoolHost drafted(cache);
      PoolHost plain(cache);
      std::vector<Row> with_drafts = make_rows(2);
      std::vector<Row> without = make_rows(2);
      uint64_t seed = 70;
      const auto extend = [&](PoolHost& pool, std::vector<Row>& rows, const std::vector<int32_t>& counts, uint64_t of) {
        pool.plan(pointers_to(rows), counts);
        std::vector<float> out;
        for (int32_t layer = 0; layer < Shape{}.n_layers; ++layer) {
          const std::vector<float> more =
              pool.extend(layer, tokens_of(cache, layer, counts, of + static_cast<uint64_t>(layer)));
          out.insert(out.end(), more.begin(), more.end());
        }
        return out;
      };
      extend(drafted, with_drafts, {90, 150}, seed);
      extend(plain, without, {90, 150}, seed);
      for (const int32_t drafts : {1, 7, 20, 32, 12, 32, 5}) {
        seed += 10;
        extend(drafted, with_drafts, {drafts, drafts}, seed);
        for (Row& row : with_drafts) row.length -= drafts;  // all rejected
        const std::vector<int32_t> counts = {1 + drafts % 3, 11};
        CHECK(extend(drafted, with_drafts, counts, seed + 5) == extend(plain, without, counts, seed + 5));
      }
      // The end of a chunk that fills several pages.
      const Rows tokens = tokens_of(cache, 0, {100}, 7);
      Rows kept = tokens_of(cache, 0, {68}, 7);
      for (auto [all, some] :
           {std::pair(&tokens.k, &kept.k), std::pair(&tokens.v, &kept.v), std::pair(&tokens.q, &kept.q)}) {
        some->assign(all->begin(), all->begin() + static_cast<std::ptrdiff_t>(some->size()));
      }
      drafted.plan({&with_drafts[0]}, tokens.counts);
      drafted.extend(0, tokens);
      with_drafts[0].length -= 32;
      plain.plan({&without[0]}, kept.counts);
      plain.extend(0, kept);
      const Rows next = tokens_of(cache, 0, {2}, 8);
      drafted.plan({&with_drafts[0]}, next.counts);
      plain.plan({&without[0]}, next.counts);
      CHECK(drafted.extend(0, next) == plain.extend(0, next));
    }
  }
}

TEST_CASE("pools: more sequences than one launch takes as arguments, and empty ones") {
  constexpr int32_t kSequences = kvq_test::full_or_small(301, 101);
  for (const std::string& isa : kvq_test::backends()) {
    CAPTURE(isa);
    const Context context = kvq_test::make_context(isa.c_str(), 2);
    const Cache cache = make_cache(context, Shape{}.options(), "{version: 1, keys: gs4, values: gs2, sink: 0}");
    PoolSizes sizes;
    sizes.n_blocks = 4 * kSequences;
    sizes.n_tails = kSequences + 1;
    sizes.max_sequences = kSequences + 1;
    sizes.max_tokens = 75 * kSequences;
    PoolHost pool(cache, sizes);
    Twin twin(cache, kSequences);
    std::vector<Row> rows = make_rows(kSequences);
    std::vector<int32_t> counts;
    for (int32_t i = 0; i < kSequences; ++i) counts.push_back(1 + 7 * i % 75);
    Row empty;
    empty.tail = kSequences;
    for (const bool first : {true, false}) {
      if (!first) std::fill(counts.begin(), counts.end(), 1);
      const Rows tokens = tokens_of(cache, 0, counts, first ? 31 : 32);
      std::vector<Row*> all = pointers_to(rows);
      all.push_back(&empty);
      std::vector<int32_t> with_empty = counts;
      with_empty.push_back(0);
      pool.plan(all, with_empty);
      check_same(pool.extend(0, tokens), twin.extend(0, tokens), pool.on_device());
    }
  }
}

TEST_CASE("pools: blocks of zeros are keys and values of zero") {
  for (const std::string& isa : kvq_test::backends()) {
    for (const std::string& policy : pool_policies()) {
      if (policy.find("centres") != std::string::npos) continue;  // zeros are the first centre there
      CAPTURE(isa);
      CAPTURE(policy);
      const Context context = kvq_test::make_context(isa.c_str());
      const Cache cache = make_pool_cache(context, policy);
      PoolSizes sizes;
      sizes.fill = 0;
      PoolHost pool(cache, sizes);
      Row row;
      row.length = 64;
      pool.grow(row, 64);
      const Rows tokens = tokens_of(cache, 0, {1}, 60);
      pool.plan({&row}, {1});
      const std::vector<float> out = pool.extend(0, tokens);
      for (int32_t head = 0; head < Shape{}.q_heads; ++head) {
        // Of 65 logits 64 are 0, and only the new token's value is not.
        const size_t at = static_cast<size_t>(head) * 64;
        const size_t of_kv = static_cast<size_t>(head / 2) * 64;
        double ratio = static_cast<double>(out[at]) / static_cast<double>(tokens.v[of_kv]);
        CHECK(ratio > 0.0);
        CHECK(ratio < 1.0);
        for (size_t c = 1; c < 64; ++c) {
          CHECK(std::fabs(static_cast<double>(out[at + c]) - ratio * static_cast<double>(tokens.v[of_kv + c])) < 2e-3);
        }
      }
    }
  }
}

TEST_CASE("pools: any bytes in blocks are read within the pool, and harm no other sequence") {
  for (const std::string& isa : kvq_test::backends()) {
    for (const std::string& policy : pool_policies()) {
      CAPTURE(isa);
      CAPTURE(policy);
      const Context context = kvq_test::make_context(isa.c_str());
      const Cache cache = make_pool_cache(context, policy);
      PoolSizes sizes;
      sizes.noise = 3;
      PoolHost noisy(cache, sizes);
      PoolHost clean(cache);
      const auto first_output = [&](PoolHost& pool) {
        std::vector<Row> rows = make_rows(2);
        pool.plan({&rows[0]}, {80});
        pool.extend(0, tokens_of(cache, 0, {80}, 61));
        // The other sequence has blocks that no call has written.
        rows[1].length = 120;
        pool.grow(rows[1], 130);
        const Rows next = tokens_of(cache, 0, {1, 3}, 62);
        pool.plan(pointers_to(rows), next.counts);
        std::vector<float> out = pool.extend(0, next);
        out.resize(Shape{}.query_scalars());
        return out;
      };
      CHECK(first_output(noisy) == first_output(clean));
    }
  }
}

}  // namespace conformance::pools_test
