// Steps: what was appended inside counts as if only the kept tokens had been, whatever pages were sealed meanwhile.
#include "conversation.h"
#include "support/random.h"

#include <doctest/doctest.h>

#include <algorithm>
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

 private:
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
