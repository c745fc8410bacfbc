// Appending to several sequences at once stores the same pages as separate appends, for any layout of keys and values.
#include "conversation.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

namespace conformance::append_batch_test {
namespace {

using kvq_test::Cache;
using kvq_test::Context;
using kvq_test::Rows;
using kvq_test::Sequence;
using kvq_test::Snapshot;
using kvq_test::Tensor;

constexpr Shape kShape{};

/// Layout of keys and values: offsets of their first rows and strides, in elements of one buffer.
struct Layout {
  const char* name;
  size_t k_offset;
  size_t v_offset;
  int64_t k_token_stride;
  int64_t k_head_stride;
  int64_t v_token_stride;
  int64_t v_head_stride;
};

std::vector<Layout> layouts(const Shape& shape, int64_t tokens) {
  const int64_t dim = shape.head_dim;
  const int64_t heads = shape.kv_heads;
  const int64_t token = (shape.q_heads + 2 * heads) * dim;
  const auto q = static_cast<size_t>(shape.q_heads * dim);
  const auto size = static_cast<size_t>(tokens * heads * dim);
  return {{"dense", 0, size, 0, 0, 0, 0},
          {"fused q, k and v", q, q + static_cast<size_t>(heads * dim), token, 0, token, 0},
          {"[heads, tokens, head_dim]", 0, size, dim, tokens * dim, dim, tokens * dim},
          {"keys head-major, values dense", 0, size, dim, tokens * dim, 0, 0},
          {"odd strides", 1, 2 * size + 3 * static_cast<size_t>(tokens) + 1, heads * (dim + 1) + 1, dim + 1, dim + 3,
           tokens * (dim + 3) + 5}};
}

/// Keys and values [tokens, kv_heads, head_dim] in one buffer.
class Fused {
 public:
  Fused(const Shape& shape, const Layout& layout, const Tensor& k, const Tensor& v, size_t tokens)
      : layout_(layout), bytes_(kvq_test::dtype_size(k.dtype())) {
    const auto heads = static_cast<size_t>(shape.kv_heads);
    const auto dim = static_cast<size_t>(shape.head_dim);
    const Rows k_rows{tokens, heads, dim, layout.k_token_stride, layout.k_head_stride};
    const Rows v_rows{tokens, heads, dim, layout.v_token_stride, layout.v_head_stride};
    const size_t elements = std::max(layout.k_offset + k_rows.extent(), layout.v_offset + v_rows.extent());
    buffer_.resize(elements * bytes_, std::byte{0xFF});  // NaN, which is refused
    for (size_t token = 0; token < tokens; ++token) {
      for (size_t head = 0; head < heads; ++head) {
        const size_t from = (token * heads + head) * dim;
        std::memcpy(at(layout.k_offset + k_rows.at(token, head)), k.at(from), dim * bytes_);
        std::memcpy(at(layout.v_offset + v_rows.at(token, head)), v.at(from), dim * bytes_);
      }
    }
  }

  void put_into(kvq_append_batch& batch) {
    batch.k = at(layout_.k_offset);
    batch.v = at(layout_.v_offset);
    batch.k_token_stride = layout_.k_token_stride;
    batch.k_head_stride = layout_.k_head_stride;
    batch.v_token_stride = layout_.v_token_stride;
    batch.v_head_stride = layout_.v_head_stride;
  }

 private:
  std::byte* at(size_t element) { return buffer_.data() + element * bytes_; }

  Layout layout_;
  size_t bytes_;
  std::vector<std::byte> buffer_;
};

/// One round of appends: tokens per sequence.
struct Round {
  std::vector<int32_t> counts;
  bool gaps;  // between positions

  int32_t tokens() const { return std::accumulate(counts.begin(), counts.end(), 0); }
};

/// Rounds that fill, allocate and seal pages, in decoding and in prompts, and more tokens at once than precomputed
/// angles.
std::vector<Round> rounds() {
  return {{{1, 33, 70, 5}, false}, {{1, 1, 1, 1}, false}, {{31, 64, 2, 1}, false},  {{40, 3, 1, 28}, true},
          {{1, 1, 1, 1}, false},   {{2, 1, 90, 1}, true}, {{1, 700, 3, 650}, false}};
}

/// Next positions of a sequence after `last`, which advances.
void add_positions(int32_t n, int32_t& last, std::vector<int32_t>& positions) {
  for (int32_t i = 0; i < n; ++i) positions.push_back(last += 1 + (i % 3 == 1 ? 7 : 0));
}

struct Conversations {
  Conversations(const std::string& isa, const std::string& policy, int32_t threads, size_t n, bool reserves)
      : context(kvq_test::make_context(isa.c_str(), threads)), cache(make_cache(context, kShape.options(), policy)) {
    for (size_t i = 0; i < n; ++i) {
      sequences.emplace_back(cache);
      if (!reserves || i % 2 != 0) continue;
      sequences.back().reserve(500);
    }
  }

  std::vector<Snapshot> snapshots() const {
    std::vector<Snapshot> result;
    for (const Sequence& sequence : sequences) result.push_back(sequence.save());
    return result;
  }

  Context context;
  Cache cache;
  std::vector<Sequence> sequences;
};

struct How {
  std::string isa;
  std::string policy;
  kvq_dtype dtype = KVQ_F32;
  int32_t threads = 1;
  bool reserves = false;
};

/// Runs rounds of appends on both caches, batched on one of them, and compares after each round.
void check_batches(const How& how) {
  CAPTURE(how.isa);
  CAPTURE(how.policy);
  CAPTURE(static_cast<int>(how.dtype));
  Conversations together(how.isa, how.policy, how.threads, 4, how.reserves);
  Conversations apart(how.isa, how.policy, 1, 4, how.reserves);
  std::vector<int32_t> last(4, -1);
  uint64_t seed = 1;
  for (const Round& round : rounds()) {
    const int32_t tokens = round.tokens();
    std::vector<int32_t> positions;
    for (size_t i = 0; i < 4; ++i) {
      if (round.gaps) {
        add_positions(round.counts[i], last[i], positions);
      } else {
        last[i] += round.counts[i];
      }
    }
    const std::vector<Layout> all = layouts(kShape, tokens);
    const Layout& layout = all[seed / 4 % all.size()];
    CAPTURE(layout.name);
    for (int32_t layer = 0; layer < kShape.n_layers; ++layer) {
      const size_t scalars = static_cast<size_t>(tokens) * kShape.token_scalars();
      const Tensor k(kvq_test::normal_tensor(scalars, ++seed), how.dtype);
      const Tensor v(kvq_test::normal_tensor(scalars, ++seed), how.dtype);
      Fused fused(kShape, layout, k, v, static_cast<size_t>(tokens));
      const auto pointers = kvq::pointers(together.sequences);
      auto batch = kvq_test::initialised<kvq_append_batch>();
      batch.n_sequences = 4;
      batch.sequences = pointers.data();
      batch.token_counts = tokens == 4 ? nullptr : round.counts.data();
      batch.positions = round.gaps ? positions.data() : nullptr;
      batch.dtype = how.dtype;
      fused.put_into(batch);
      kvq_test::append_sequences(together.cache, layer, batch);
      size_t first = 0;
      for (size_t i = 0; i < 4; ++i) {
        const auto n = static_cast<size_t>(round.counts[i]);
        kvq_test::append(
            apart.sequences[i], layer, round.counts[i], k.at(first * kShape.token_scalars()),
            v.at(first * kShape.token_scalars()), how.dtype,
            round.gaps ? std::span<const int32_t>(positions).subspan(first, n) : std::span<const int32_t>());
        first += n;
      }
    }
    CHECK(together.snapshots() == apart.snapshots());
  }
}

}  // namespace

TEST_CASE("a batch of appends stores what appends one by one store" * doctest::test_suite("long")) {
  for (const std::string& isa : kvq_test::backends()) {
    for (const std::string& policy : all_policies()) check_batches({.isa = isa, .policy = policy});
  }
}

TEST_CASE("a batch of appends with pages made ahead, on several threads, of every element type" *
          doctest::test_suite("long")) {
  for (const std::string& isa : kvq_test::backends()) {
    for (const kvq_dtype dtype : {KVQ_F32, KVQ_F16, KVQ_BF16}) {
      for (const char* policy : {"fp16", "int4+hadamard"}) {
        check_batches({.isa = isa, .policy = policy, .dtype = dtype, .threads = 3, .reserves = true});
      }
    }
  }
  const std::string best = kvq_test::cpu_isa_names().front();
  for (const std::string& policy : all_policies()) check_batches({.isa = best, .policy = policy, .threads = 3});
}

TEST_CASE("a batch of appends to a parent and its forks leaves each with its own tokens") {
  for (const std::string& isa : kvq_test::backends()) {
    for (const char* policy : {"fp16", "int4", "int2+hadamard"}) {
      const Text text(kShape, 200, 3);
      std::vector<Snapshot> expected;
      for (const bool at_once : {false, true}) {
        Conversations all(isa, policy, 1, 1, false);
        text.append(all.sequences[0], 0, 45);
        Sequence one = all.sequences[0].fork();
        Sequence two = one.fork();
        Sequence* const of_batch[] = {&one, &all.sequences[0], &two};
        kvq_sequence* const pointers[] = {one, all.sequences[0], two};
        const int32_t counts[] = {2, 30, 9};
        const std::vector<float> k = kvq_test::normal_tensor(41 * kShape.token_scalars(), 8);
        const std::vector<float> v = kvq_test::normal_tensor(41 * kShape.token_scalars(), 9);
        auto batch = kvq_test::initialised<kvq_append_batch>();
        batch.n_sequences = 3;
        batch.sequences = pointers;
        batch.token_counts = counts;
        batch.k = k.data();
        batch.v = v.data();
        size_t first = 0;
        if (at_once) kvq_test::append_sequences(all.cache, 0, batch);
        for (size_t i = 0; i < 3 && !at_once; ++i) {
          kvq_test::append(pointers[i], 0, counts[i], k.data() + first * kShape.token_scalars(),
                           v.data() + first * kShape.token_scalars());
          first += static_cast<size_t>(counts[i]);
        }
        std::vector<Snapshot> snapshots;
        for (const Sequence* each : of_batch) snapshots.push_back(each->save());
        if (!at_once) expected = snapshots;
        CHECK(snapshots == expected);
      }
    }
  }
}

TEST_CASE("keys and values with strides are stored as dense ones") {
  for (const std::string& isa : kvq_test::backends()) {
    for (const kvq_dtype dtype : {KVQ_F32, KVQ_F16, KVQ_BF16}) {
      for (const int32_t head_dim : {24, 64, 80, 128, 256}) {
        const Shape shape{.q_heads = 4, .kv_heads = 2, .head_dim = head_dim, .n_layers = 1};
        for (const char* policy : {"fp16", "int4", "int8+hadamard"}) {
          const Context context = kvq_test::make_context(isa.c_str());
          const Cache cache = kvq_test::make_cache(context, shape.options(), policy);
          for (const int32_t tokens : {1, 40, 290}) {
            const size_t scalars = static_cast<size_t>(tokens) * shape.token_scalars();
            const Tensor k(kvq_test::normal_tensor(scalars, 1), dtype);
            const Tensor v(kvq_test::normal_tensor(scalars, 2), dtype);
            Sequence dense(cache);
            kvq_test::append(dense.get(), 0, tokens, k.data(), v.data(), dtype);
            for (const Layout& layout : layouts(shape, tokens)) {
              CAPTURE(isa);
              CAPTURE(static_cast<int>(dtype));
              CAPTURE(head_dim);
              CAPTURE(policy);
              CAPTURE(tokens);
              CAPTURE(layout.name);
              Fused fused(shape, layout, k, v, static_cast<size_t>(tokens));
              Sequence strided(cache);
              kvq_sequence* pointer = strided.get();
              auto batch = kvq_test::initialised<kvq_append_batch>();
              batch.n_sequences = 1;
              batch.sequences = &pointer;
              batch.token_counts = &tokens;
              batch.dtype = dtype;
              fused.put_into(batch);
              kvq_test::append_sequences(cache, 0, batch);
              CHECK((strided.save() == dense.save()));
            }
          }
        }
      }
    }
  }
}

}  // namespace conformance::append_batch_test
