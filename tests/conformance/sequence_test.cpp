#include "conversation.h"
#include "support/random.h"

#include <doctest/doctest.h>

#include <string>

namespace conformance::sequence_test {

using kvq_test::Cache;
using kvq_test::Context;
using kvq_test::Sequence;
using kvq_test::Snapshot;

namespace {

// A cache with one policy, and a text to fill it.
struct Bench {
  explicit Bench(const std::string& policy)
      : context(kvq_test::make_context()), cache(make_cache(context, shape.options(), policy)) {}

  Sequence filled(int32_t n, int32_t chunk = 1000) const {
    Sequence sequence(cache);
    if (n > 0) text.append(sequence, 0, n, chunk);
    return sequence;
  }
  Snapshot save(const Sequence& sequence) const { return sequence.save(); }
  std::vector<float> attend(const Sequence& sequence) const {
    return attend_last(shape, cache, {sequence}, 1, queries(shape, 1));
  }

  Shape shape;
  Text text{shape, 700, 1};
  Text other{shape, 700, 2};
  Context context;
  Cache cache;
};

}  // namespace

TEST_CASE("appending in chunks of any size stores the same bytes") {
  for (const std::string& policy : all_policies()) {
    CAPTURE(policy);
    const Bench bench(policy);
    for (const int32_t n : {1, 32, 33, 64, 500}) {
      Sequence whole = bench.filled(n);
      const Snapshot expected = bench.save(whole);
      const std::vector<float> out = bench.attend(whole);
      for (const int32_t chunk : {1, 7, 31, 32, 33, 100}) {
        Sequence sequence = bench.filled(n, chunk);
        CHECK(bench.save(sequence) == expected);
        CHECK(bench.attend(sequence) == out);
      }
    }
  }
}

TEST_CASE("a fork that is appended to leaves its parent alone and equals a sequence built directly") {
  for (const std::string& policy : all_policies()) {
    CAPTURE(policy);
    const Bench bench(policy);
    for (const int32_t n : {1, 31, 32, 33, 64, 100}) {
      Sequence parent = bench.filled(n);
      const Snapshot before = bench.save(parent);
      const std::vector<float> out = bench.attend(parent);
      Sequence child = parent.fork();
      CHECK(bench.save(child) == before);
      CHECK(bench.attend(child) == out);
      bench.other.append(child, n, n + 75, 20);
      CHECK(bench.save(parent) == before);
      CHECK(bench.attend(parent) == out);

      Sequence direct = bench.filled(n);
      bench.other.append(direct, n, n + 75);
      CHECK(bench.save(child) == bench.save(direct));

      bench.text.append(parent, n, n + 40);  // and vice versa
      CHECK(bench.save(child) == bench.save(direct));
      CHECK(bench.save(parent) == bench.save(bench.filled(n + 40)));
    }
  }
}

TEST_CASE("forks of forks, destroyed in any order") {
  const Bench bench("int4");
  std::vector<Sequence> family;
  family.push_back(bench.filled(50));
  for (int generation = 0; generation < 6; ++generation) {
    family.push_back(family.back().fork());
    const int32_t n = 50 + 25 * generation;
    bench.text.append(family.back(), n, n + 25);
  }
  for (const size_t victim : {3U, 0U, 5U}) family[victim].reset();
  for (size_t i = 0; i < family.size(); ++i) {
    if (family[i] == nullptr) continue;
    CHECK(bench.save(family[i]) == bench.save(bench.filled(50 + 25 * static_cast<int32_t>(i))));
  }
}

// Exact as long as no page was sealed in between: with `recent: 2`, tokens 97 to 128 leave pages 2 and 3 in FP16.
TEST_CASE("what is truncated again was never appended") {
  for (const std::string formats :
       {"keys: int4\nvalues: int2\n", "keys: int8+hadamard\nvalues: int8\n", "keys: fp16\nvalues: fp16\n",
        "keys: fp16\nvalues: int3+hadamard\n", "sink: 0\nkeys: gs2+centres\nvalues: gt1+centres\n"}) {
    CAPTURE(formats);
    const Bench bench("version: 1\nrecent: 2\n" + formats);
    for (const auto& [base, longer] : {std::pair{97, 128}, {100, 101}, {65, 96}, {1, 64}, {127, 128}}) {
      const Snapshot expected = bench.save(bench.filled(base));
      Sequence sequence = bench.filled(base);
      bench.other.append(sequence, base, longer);
      sequence.truncate(base);
      CHECK(bench.save(sequence) == expected);
      bench.text.append(sequence, base, 300);
      CHECK(bench.save(sequence) == bench.save(bench.filled(300)));
    }
  }
}

TEST_CASE("truncating to a page border keeps sealed pages as they are") {
  for (const std::string& policy : all_policies()) {
    CAPTURE(policy);
    const Bench bench(policy);
    Sequence sequence = bench.filled(200);
    const auto decode = [&](const Sequence& s, int32_t n) {
      return kvq_test::decode(s, 1, 1, 0, n, bench.shape.head_dim);
    };
    const kvq_test::Decoded before = decode(sequence, 64);
    sequence.truncate(64);
    CHECK_EQ(sequence.length(1), 64);
    const kvq_test::Decoded after = decode(sequence, 64);
    CHECK(before.k == after.k);
    CHECK(before.v == after.v);
    CHECK(before.positions == after.positions);
    bench.other.append(sequence, 64, 150);
    CHECK(decode(sequence, 64).k == before.k);
  }
}

TEST_CASE("truncating a fork leaves its parent alone") {
  for (const char* policy : {"fp16", "int4"}) {
    const Bench bench(policy);
    Sequence parent = bench.filled(100);
    const Snapshot before = bench.save(parent);
    for (const int32_t cut : {98, 96, 64, 0}) {
      Sequence child = parent.fork();
      child.truncate(cut);
      bench.other.append(child, cut, cut + 50);
      CHECK(bench.save(parent) == before);
    }
  }
}

TEST_CASE("a snapshot loads to the same bytes and the same attention, and goes on the same way") {
  for (const std::string& policy : all_policies()) {
    CAPTURE(policy);
    const Bench bench(policy);
    for (const int32_t n : {0, 1, 32, 33, 200}) {
      Sequence sequence = bench.filled(n);
      const Snapshot snapshot = bench.save(sequence);
      Sequence loaded = kvq_test::Sequence::load(bench.cache, snapshot);
      CHECK(bench.save(loaded) == snapshot);
      if (n > 0) CHECK(bench.attend(loaded) == bench.attend(sequence));
      bench.text.append(loaded, n, n + 60, 9);
      CHECK(bench.save(loaded) == bench.save(bench.filled(n + 60)));
    }
  }
}

TEST_CASE("a snapshot of a fork holds everything") {
  const Bench bench("int4+hadamard");
  Sequence parent = bench.filled(100);
  Sequence child = parent.fork();
  bench.text.append(child, 100, 170);
  const Snapshot snapshot = bench.save(child);
  parent.reset();
  const Bench elsewhere("int4+hadamard");
  Sequence loaded = kvq_test::Sequence::load(elsewhere.cache, snapshot);
  CHECK(elsewhere.save(loaded) == snapshot);
  CHECK(elsewhere.attend(loaded) == bench.attend(child));
}

}  // namespace conformance::sequence_test
