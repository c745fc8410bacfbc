// Steps: what was appended inside counts as if only the kept tokens had been, whatever pages were sealed meanwhile.
#include "conversation.h"
#include "support/random.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

namespace conformance::step_test {
namespace {

using kvq_test::Cache;
using kvq_test::Context;
using kvq_test::Sequence;

constexpr Shape kShape{};
constexpr int32_t kTokens = 4000;

// The tokens of a text with their queries.
class Conversation {
 public:
  Conversation() : q_(queries(kShape, kTokens)) {
    for (uint64_t layer = 0; layer < 2; ++layer) {
      k_.push_back(kvq_test::normal_tensor(kTokens * kShape.token_scalars(), 2 * layer + 1));
      v_.push_back(kvq_test::normal_tensor(kTokens * kShape.token_scalars(), 2 * layer + 2));
    }
  }

  // Tokens [begin, begin + n) in one call for every layer: appended, or extended with.
  std::vector<float> add(const Cache& cache, Sequence& sequence, int32_t begin, int32_t n, bool extends) const {
    std::vector<float> out(static_cast<size_t>(n) * kShape.query_scalars());
    const size_t at = static_cast<size_t>(begin) * kShape.token_scalars();
    kvq_sequence* pointer = sequence.get();
    for (int32_t layer = 0; layer < kShape.n_layers; ++layer) {
      const float* k = k_[static_cast<size_t>(layer)].data() + at;
      const float* v = v_[static_cast<size_t>(layer)].data() + at;
      if (!extends) {
        kvq_test::append(pointer, layer, n, k, v);
        continue;
      }
      auto batch = kvq_test::initialised<kvq_extend_batch>();
      batch.n_sequences = 1;
      batch.sequences = &pointer;
      batch.token_counts = &n;
      batch.k = k;
      batch.v = v;
      batch.q = q_.data() + static_cast<size_t>(begin) * kShape.query_scalars();
      batch.output = out.data();
      kvq_test::extend(cache, layer, batch);
    }
    return out;
  }

  // Any tokens at any positions, [begin, end) of lists of them. Extensions give the queries' results in the last layer;
  // a query sees what `mask` says of these tokens, and all before them.
  std::vector<float> add(const Cache& cache, Sequence& sequence, std::span<const int32_t> tokens,
                         std::span<const int32_t> positions, bool extends, std::span<const uint32_t> mask = {},
                         int32_t mask_slots = 0) const {
    const auto n = static_cast<int32_t>(tokens.size());
    std::vector<float> out(tokens.size() * kShape.query_scalars());
    const std::vector<float> q = rows(q_, tokens, kShape.query_scalars());
    kvq_sequence* pointer = sequence.get();
    for (size_t layer = 0; layer < k_.size(); ++layer) {
      const std::vector<float> k = rows(k_[layer], tokens, kShape.token_scalars());
      const std::vector<float> v = rows(v_[layer], tokens, kShape.token_scalars());
      if (!extends) {
        kvq_test::append(pointer, static_cast<int32_t>(layer), n, k.data(), v.data(), KVQ_F32, positions);
        continue;
      }
      auto batch = kvq_test::initialised<kvq_extend_batch>();
      batch.n_sequences = 1;
      batch.sequences = &pointer;
      batch.token_counts = &n;
      batch.positions = positions.data();
      batch.k = k.data();
      batch.v = v.data();
      batch.q = q.data();
      batch.output = out.data();
      batch.mask = mask.empty() ? nullptr : mask.data();
      batch.mask_slots = mask_slots;
      kvq_test::extend(cache, static_cast<int32_t>(layer), batch);
    }
    return out;
  }

 private:
  static std::vector<float> rows(const std::vector<float>& all, std::span<const int32_t> which, size_t width) {
    std::vector<float> result;
    for (const int32_t i : which) {
      const auto from = all.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(i) * width);
      result.insert(result.end(), from, from + static_cast<std::ptrdiff_t>(width));
    }
    return result;
  }

  std::vector<std::vector<float>> k_;
  std::vector<std::vector<float>> v_;
  std::vector<float> q_;
};

// One sequence in steps, and its twin that never sees what they take back.
struct Twins {
  explicit Twins(const Cache& cache) : stepped(cache), plain(cache) {}
  Twins(Sequence a, Sequence b) : stepped(std::move(a)), plain(std::move(b)) {}

  Sequence stepped;
  Sequence plain;
};

// Tokens of a draft tree: which tokens of the text, and where.
struct Tree {
  std::vector<int32_t> tokens;
  std::vector<int32_t> positions;
  std::vector<int32_t> parents;  // -1: a root

  Tree(int32_t count, int32_t first_token, int32_t after, kvq_test::Random& random) {
    for (int32_t i = 0; i < count; ++i) {
      tokens.push_back(first_token + i);
      parents.push_back(random.integer(std::max(i - 40, -1), i - 1));
      positions.push_back((parents.back() < 0 ? after : positions[static_cast<size_t>(parents.back())]) +
                          (random.integer(0, 30) == 0 ? 3 : 1));
    }
  }

  // The way from a root to a token.
  std::vector<int32_t> way_to(int32_t token) const {
    std::vector<int32_t> way;
    for (; token >= 0; token = parents[static_cast<size_t>(token)]) way.push_back(token);
    std::reverse(way.begin(), way.end());
    return way;
  }

  // Only some of its tokens.
  Tree part(const std::vector<int32_t>& some) const {
    Tree result = *this;
    result.tokens.clear();
    result.positions.clear();
    for (const int32_t i : some) {
      result.tokens.push_back(tokens[static_cast<size_t>(i)]);
      result.positions.push_back(positions[static_cast<size_t>(i)]);
    }
    return result;
  }
};

void keep(const Cache& cache, Sequence& sequence, const std::vector<int32_t>& slots) {
  kvq_sequence* pointer = sequence.get();
  const auto count = static_cast<int32_t>(slots.size());
  auto batch = kvq_test::initialised<kvq_step_batch>();
  batch.n_sequences = 1;
  batch.sequences = &pointer;
  batch.token_counts = &count;
  batch.kept_slots = slots.data();
  kvq_test::checked(kvq_step_commit, cache.get(), &batch);
}

int32_t step_size(kvq_test::Random& random) {
  const int32_t kSizes[] = {1, random.integer(2, 8), random.integer(9, 33), random.integer(34, 150)};
  return kSizes[random.integer(0, 3)];
}

std::vector<std::string> step_policies() {
  std::vector<std::string> policies = graph_policies();
  for (const std::string& policy : coded_policies()) policies.push_back(policy);
  policies.emplace_back("version: 1\nkeys: int2\nvalues: int3\nrecent: 3\n");
  policies.emplace_back("version: 1\nkeys: gs2\nvalues: int4\nsink: 40\nrecent: 2\n");
  return policies;
}

}  // namespace

TEST_CASE("what a step keeps is stored as if it alone had been appended, whatever is done between steps") {
  const Conversation text;
  for (const std::string& backend : {kvq_test::backends().front(), kvq_test::backends().back()}) {
    for (const std::string& policy : step_policies()) {
      CAPTURE(backend);
      CAPTURE(policy);
      const Context context = kvq_test::make_context(backend.c_str());
      const Cache cache = make_cache(context, kShape.options(), policy);
      kvq_test::Random random(11);
      std::vector<Twins> twins;
      twins.emplace_back(cache);
      for (int program = 0; program < 60; ++program) {
        CAPTURE(program);
        Twins& pair = twins[static_cast<size_t>(random.integer(0, static_cast<int32_t>(twins.size()) - 1))];
        const int32_t length = pair.plain.length(0);
        switch (random.integer(0, 9)) {
          case 0:
            pair.stepped.reserve(random.integer(0, 200));
            break;
          case 1:
            for (Sequence* each : {&pair.stepped, &pair.plain}) each->truncate(length / 64 * 32);
            break;
          case 2:
            if (twins.size() > 2) twins.erase(twins.begin() + random.integer(0, 1));
            twins.emplace_back(twins.back().stepped.fork(), twins.back().plain.fork());
            break;
          case 3:
            for (Sequence* each : {&pair.stepped, &pair.plain}) text.add(cache, *each, length, 40, false);
            break;
          default: {
            const int32_t count = step_size(random);
            const int32_t added = random.integer(1, count);
            const int32_t kept = random.integer(0, 3) == 0 ? added : random.integer(0, added);
            CAPTURE(count);
            CAPTURE(added);
            CAPTURE(kept);
            begin_step(cache, pair.stepped, count);
            for (int32_t at = 0; at < added;) {
              const int32_t n = std::min(added - at, random.integer(0, 1) == 0 ? added : random.integer(1, 40));
              text.add(cache, pair.stepped, length + at, n, random.integer(0, 1) == 0);
              at += n;
            }
            end_step(cache, pair.stepped, kept);
            if (kept > 0) text.add(cache, pair.plain, length, kept, false);
          }
        }
        const Twins& seen = twins[static_cast<size_t>(random.integer(0, static_cast<int32_t>(twins.size()) - 1))];
        REQUIRE(seen.stepped.length(1) == seen.plain.length(1));
        REQUIRE(seen.stepped.save() == seen.plain.save());
        if (seen.plain.length(0) == 0) continue;
        const std::vector<float> q = queries(kShape, 1);
        CHECK(attend_last(kShape, cache, {seen.stepped}, 1, q) == attend_last(kShape, cache, {seen.plain}, 1, q));
      }
    }
  }
}

TEST_CASE("what a step keeps of a tree is stored as if it alone had been appended") {
  const Conversation text;
  for (const std::string& backend : {kvq_test::backends().front(), kvq_test::backends().back()}) {
    for (const std::string& policy : step_policies()) {
      CAPTURE(backend);
      CAPTURE(policy);
      const Context context = kvq_test::make_context(backend.c_str());
      const Cache cache = make_cache(context, kShape.options(), policy);
      const bool takes_masks = backend != kvq_test::kCuda || !kvq_test::wants_centres(policy);
      kvq_test::Random random(17);
      Twins pair(cache);
      int32_t last = -1;  // position
      for (int32_t program = 0; program < 30; ++program) {
        CAPTURE(program);
        if (random.integer(0, 9) == 0) {
          pair = Twins(pair.stepped.fork(), pair.plain.fork());
        }
        const int32_t count = step_size(random);
        const Tree tree(count, 100 * program, last, random);
        std::vector<int32_t> kept = tree.way_to(random.integer(0, count - 1));
        if (random.integer(0, 3) == 0)
          kept.resize(static_cast<size_t>(random.integer(0, static_cast<int32_t>(kept.size()))));
        CAPTURE(count);
        CAPTURE(kept.size());
        begin_step(cache, pair.stepped, count);
        for (int32_t at = 0; at < count;) {
          const int32_t n = std::min(count - at, random.integer(0, 1) == 0 ? count : random.integer(1, 40));
          const auto begin = static_cast<size_t>(at);
          const auto tokens = std::span(tree.tokens).subspan(begin, static_cast<size_t>(n));
          const auto positions = std::span(tree.positions).subspan(begin, static_cast<size_t>(n));
          const std::vector<uint32_t> all(tokens.size() * kvq_test::mask_words(200), ~uint32_t{0});
          text.add(cache, pair.stepped, tokens, positions, random.integer(0, 1) == 0 && takes_masks, all, 200);
          at += n;
        }
        keep(cache, pair.stepped, kept);
        const Tree way = tree.part(kept);
        if (!kept.empty()) {
          text.add(cache, pair.plain, way.tokens, way.positions, false);
          last = way.positions.back();
        }
        REQUIRE(pair.stepped.length(0) == pair.plain.length(0));
        REQUIRE(pair.stepped.save() == pair.plain.save());
        if (pair.plain.length(0) == 0) continue;
        const std::vector<float> q = queries(kShape, 1);
        CHECK(attend_last(kShape, cache, {pair.stepped}, 1, q) == attend_last(kShape, cache, {pair.plain}, 1, q));
      }
    }
  }
}

TEST_CASE("each way from a root of a tree to a leaf gives what it gives alone") {
  const Conversation text;
  for (const std::string& backend : kvq_test::backends()) {
    for (const char* policy : {"fp16", "int8", "int4", "gs4", "gt2", "commvq", "gs2+centres"}) {
      CAPTURE(backend);
      CAPTURE(policy);
      const Context context = kvq_test::make_context(backend.c_str());
      const Cache cache = make_cache(context, kShape.options(), policy);
      kvq_test::Random random(23);
      for (const int32_t older : {0, 5, 64, 150}) {
        CAPTURE(older);
        Sequence sequence(cache);
        if (older > 0) text.add(cache, sequence, 0, older, false);
        const int32_t count = random.integer(1, 32);
        const Tree tree(count, 1000, older - 1, random);
        std::vector<uint32_t> mask(static_cast<size_t>(count), 0);
        for (int32_t i = 0; i < count; ++i) {
          for (const int32_t seen : tree.way_to(i)) mask[static_cast<size_t>(i)] |= uint32_t{1} << seen;
        }
        Sequence trunk = sequence.fork();
        begin_step(cache, sequence, count);
        const std::vector<float> together = text.add(cache, sequence, tree.tokens, tree.positions, true, mask, count);
        end_step(cache, sequence, 0);
        for (int32_t i = 0; i < count; ++i) {
          const Tree way = tree.part(tree.way_to(i));
          Sequence alone = trunk.fork();
          const std::vector<float> out = text.add(cache, alone, way.tokens, way.positions, true);
          double largest = 0.0;
          for (size_t c = 0; c < kShape.query_scalars(); ++c) {
            const float a = out[out.size() - kShape.query_scalars() + c];
            const float b = together[static_cast<size_t>(i) * kShape.query_scalars() + c];
            largest = std::max(largest, std::fabs(double{a} - double{b}));
          }
          CHECK(largest < (std::string(policy) == "fp16" && backend != kvq_test::kCuda ? 2e-5 : 5e-2));
        }
        CHECK(sequence.save() == trunk.save());
      }
    }
  }
}

TEST_CASE("inside a step an extension gives what it gives without one") {
  const Conversation text;
  for (const std::string& backend : kvq_test::backends()) {
    for (const char* policy : {"gs2", "int4", "version: 1\nkeys: gs4\nvalues: int2\nrecent: 2\n"}) {
      CAPTURE(backend);
      CAPTURE(policy);
      const Context context = kvq_test::make_context(backend.c_str());
      const Cache cache = make_cache(context, kShape.options(), policy);
      Twins pair(cache);
      for (int32_t at = 0; at < 300;) {
        const int32_t n = at % 3 == 0 ? 70 : 5;
        begin_step(cache, pair.stepped, n + 3);
        text.add(cache, pair.stepped, at, n, true);
        end_step(cache, pair.stepped, 0);
        begin_step(cache, pair.stepped, n);
        const std::vector<float> inside = text.add(cache, pair.stepped, at, n, true);
        end_step(cache, pair.stepped, n);
        CHECK(inside == text.add(cache, pair.plain, at, n, true));
        at += n;
      }
    }
  }
}

// The twin's queries are those of kept tokens alone.
TEST_CASE("eviction judges by the queries of what steps keep") {
  const Conversation text;
  for (const std::string& backend : {kvq_test::backends().front(), kvq_test::backends().back()}) {
    for (const std::string policy : {"int4+snapkv:64", "gs2+adapyramid:64", "int8+streaming:64", "int4+h2o:64"}) {
      CAPTURE(backend);
      CAPTURE(policy);
      const bool sums = policy.find("h2o") != std::string::npos;
      const Context context = kvq_test::make_context(backend.c_str());
      const Cache cache = make_cache(context, kShape.options(), policy);
      kvq_test::Random random(5);
      Twins pair(cache);
      for (int program = 0; program < 40; ++program) {
        CAPTURE(program);
        const int32_t length = pair.plain.length(0);
        const int32_t count = random.integer(1, random.integer(0, 4) == 0 ? 60 : 12);
        // Attention is summed up call by call, and a window takes back no more queries than it holds.
        const bool whole = sums || count > 32;
        const int32_t kept = whole ? random.integer(0, 1) * count : random.integer(0, count);
        CAPTURE(count);
        CAPTURE(kept);
        begin_step(cache, pair.stepped, count);
        text.add(cache, pair.stepped, length, count, true);
        end_step(cache, pair.stepped, kept);
        if (kept > 0) text.add(cache, pair.plain, length, kept, true);
        if (pair.plain.length(0) > 150 && random.integer(0, 5) == 0) {
          const auto options = kvq_test::initialised<kvq_compress_options>();
          for (Sequence* each : {&pair.stepped, &pair.plain}) each->compress(options);
        }
        REQUIRE(pair.stepped.save() == pair.plain.save());
      }
    }
  }
}

}  // namespace conformance::step_test
