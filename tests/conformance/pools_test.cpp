// Pages in the host's memory: the bits of the cache, whatever blocks and tables are like.
#include "pool_host.h"
#include "support/reference.h"

#include <doctest/doctest.h>

#include <cmath>
#include <string>

namespace conformance::pools_test {
namespace {

using kvq_test::Cache;
using kvq_test::Context;
using kvq_test::Sequence;

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

// As blocks take them: any byte is the index of a centre.
Cache make_pool_cache(kvq_context* context, const std::string& policy) {
  return kvq_test::make_cache(context, Shape{}.options(), policy, kvq_test::CentreCounts{256, 1});
}

Rows tokens_of(const kvq_cache* cache, int32_t layer, std::vector<int32_t> counts, uint64_t seed) {
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
  Twin(const Cache& cache, size_t n) : cache_(cache) {
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
    for (const Sequence& each : sequences) pointers.push_back(each);
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

  std::vector<Sequence> sequences;

 private:
  size_t outputs(int32_t layer, const Rows& rows) const {
    const kvq_layer_info info = cache_.describe_layer(layer);
    return static_cast<size_t>(rows.n()) * static_cast<size_t>(info.q_heads) * static_cast<size_t>(info.value_dim);
  }

  const Cache& cache_;
};

std::vector<Row*> pointers_to(std::vector<Row>& rows) {
  std::vector<Row*> pointers;
  for (Row& row : rows) pointers.push_back(&row);
  return pointers;
}

std::vector<Row> make_rows(int32_t n) {
  std::vector<Row> rows(static_cast<size_t>(n));
  for (int32_t i = 0; i < n; ++i) rows[static_cast<size_t>(i)].tail = (5 * i + 3) % n;  // 5 and n have no common factor
  return rows;
}

// Chunks that fill, open and seal pages, in decoding and in prompts. Of more than 32 tokens none begins after a full
// page: a cache has that in FP16 until the next token has come.
std::vector<std::vector<int32_t>> rounds() {
  return {{1, 33, 70}, {1, 1, 1}, {31, 64, 2}, {40, 3, 1}, {1, 27, 32}, {22, 1, 20}, {1, 1, 2}, {1, 90, 3}, {1, 1, 1}};
}

// GPUs divide the pages of pools and caches otherwise among their processors, so sums may round otherwise.
void check_same(const std::vector<float>& found, const std::vector<float>& expected, bool on_device) {
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
  constexpr int32_t kSequences = 101;
  for (const std::string& isa : kvq_test::backends()) {
    CAPTURE(isa);
    const Context context = kvq_test::make_context(isa.c_str(), 2);
    const Cache cache = make_cache(context, Shape{}.options(), "{version: 1, keys: gs4, values: gs2, sink: 0}");
    PoolSizes sizes;
    sizes.n_blocks = 400;
    sizes.n_tails = kSequences + 1;
    sizes.max_sequences = kSequences + 1;
    sizes.max_tokens = 8192;
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

TEST_CASE("pools: layers that differ, that share pages, latents") {
  for (const std::string& isa : kvq_test::backends()) {
    CAPTURE(isa);
    const Context context = kvq_test::make_context(isa.c_str());
    kvq_cache_options options = kvq_test::cache_options(4, 2, 64, 5);
    std::vector<kvq_layer_shape> shapes(4, kvq_test::initialised<kvq_layer_shape>());
    for (int32_t i = 0; i < 4; ++i) {
      shapes[static_cast<size_t>(i)].first_layer = i + 1;
      shapes[static_cast<size_t>(i)].n_layers = 1;
    }
    shapes[0].pages_of_layer = 0;
    shapes[0].scale = 0.2F;
    shapes[1].q_heads = shapes[1].kv_heads = 4;
    shapes[1].key_dim = shapes[1].value_dim = 128;
    shapes[2].q_heads = 8;
    shapes[2].kv_heads = 2;
    shapes[2].key_dim = shapes[2].value_dim = 256;
    shapes[3].q_heads = 16;
    shapes[3].kv_heads = 1;
    shapes[3].key_dim = 576;
    shapes[3].value_dim = 512;
    shapes[3].values_are_key_prefix = 1;
    options.shapes = shapes.data();
    options.n_shapes = 4;
    const Cache cache = make_cache(context, options, "{version: 1, keys: gs4, values: gs4, sink: 0}");
    PoolHost pool(cache);
    Twin twin(cache, 2);
    std::vector<Row> rows = make_rows(2);
    uint64_t seed = 50;
    for (const std::vector<int32_t>& counts : std::vector<std::vector<int32_t>>{{70, 3}, {1, 1}, {1, 30}, {2, 1}}) {
      pool.plan(pointers_to(rows), counts);
      for (int32_t layer = 0; layer < 5; ++layer) {
        CAPTURE(layer);
        Rows tokens = tokens_of(cache, layer, counts, ++seed);
        if (layer == 4) tokens.v.clear();
        if (layer == 1) {
          check_same(pool.attend(layer, tokens), twin.attend(layer, tokens), pool.on_device());
        } else {
          check_same(pool.extend(layer, tokens), twin.extend(layer, tokens), pool.on_device());
        }
      }
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
