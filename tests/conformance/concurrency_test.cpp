// Concurrent calls that the header allows. A thread sanitizer finds races here; otherwise the results are compared with
// those of one thread.
#include "conversation.h"
#include "support/build.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

namespace conformance::concurrency_test {

using kvq_test::Cache;
using kvq_test::Context;
using kvq_test::Sequence;
using kvq_test::Snapshot;

namespace {

constexpr int kThreads = 4;

// Runs `body(thread)` on several threads and fails the test case if one of them throws.
template <typename Body>
void on_threads(Body&& body) {
  std::atomic<int> n_failures{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      try {
        body(thread);
      } catch (const std::exception&) {
        ++n_failures;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(n_failures.load(), 0);
}

}  // namespace

TEST_CASE("sequences of one cache are created, appended to, forked, saved and destroyed concurrently") {
  const Shape shape;
  const Text text(shape, 300, 1);
  const Context context = kvq_test::make_context(nullptr, 2);
  const Cache cache = kvq_test::make_cache(context, shape.options(), "version: 1\nkeys: int4+hadamard\nvalues: int4\n");
  const auto build = [&](int32_t n) {
    Sequence sequence(cache);
    text.append(sequence, 0, n, 50);
    return sequence;
  };
  const Snapshot expected = build(230).save();
  std::atomic<int> n_different{0};
  on_threads([&](int) {
    for (int round = 0; round < kvq_test::full_or_small(20, 4); ++round) {
      Sequence sequence = build(130);
      Sequence child = sequence.fork();
      text.append(child, 130, 230);
      if (child.save() != expected) ++n_different;
      Sequence loaded = kvq_test::Sequence::load(cache, expected);
      if (loaded.save() != expected) ++n_different;
    }
  });
  CHECK_EQ(n_different.load(), 0);
  CHECK_EQ(cache.usage().scalars, 0);
}

TEST_CASE("one sequence is forked, saved and decoded by several threads at once") {
  const Shape shape;
  const Text text(shape, 300, 1);
  const Context context = kvq_test::make_context();
  const Cache cache = kvq_test::make_cache(context, shape.options(), "int3");
  Sequence parent(cache);
  text.append(parent, 0, 100);
  const Snapshot before = parent.save();
  std::atomic<int> n_different{0};
  on_threads([&](int thread) {
    for (int round = 0; round < kvq_test::full_or_small(20, 4); ++round) {
      Sequence child = parent.fork();
      text.append(child, 100, 130 + thread);
      if (parent.save() != before) ++n_different;
      const kvq_test::Decoded ours = kvq_test::decode(child, 1, 1, 0, 96, shape.head_dim);
      const kvq_test::Decoded theirs = kvq_test::decode(parent, 1, 1, 0, 96, shape.head_dim);
      if (thread >= 0 && ours.positions != theirs.positions) ++n_different;
      parent.usage();
    }
  });
  CHECK_EQ(n_different.load(), 0);
  CHECK(parent.save() == before);
}

TEST_CASE("a fork is truncated inside pages that its parent lets go of at the same time") {
  const Shape shape{.q_heads = 8, .kv_heads = 8, .head_dim = 8, .n_layers = 64};  // many pages to copy
  const Text text(shape, 20, 1);
  const Context context = kvq_test::make_context();
  const Cache cache = kvq_test::make_cache(context, shape.options(), "fp16");
  const auto saved = [&](int32_t n) {
    Sequence sequence(cache);
    text.append(sequence, 0, n);
    return sequence.save();
  };
  const Snapshot whole = saved(20);
  const Snapshot expected = saved(13);
  for (const bool is_destroyed : {false, true}) {
    CAPTURE(is_destroyed);
    int n_different = 0;
    for (int round = 0; round < kvq_test::full_or_small(400, 40); ++round) {
      Sequence parent = kvq_test::Sequence::load(cache, whole);
      Sequence child = parent.fork();
      std::atomic<int> n_ready{0};
      const auto meet = [&n_ready] {
        for (++n_ready; n_ready < 2;) {
        }
      };
      std::thread other([&] {
        meet();
        if (is_destroyed) {
          // At a different moment of the truncation each time.
          const auto moment = std::chrono::steady_clock::now() + std::chrono::microseconds(2 * (round % 200));
          while (std::chrono::steady_clock::now() < moment) {
          }
          parent.reset();
        } else {
          kvq_sequence_truncate(cache, parent, 13, nullptr);
        }
      });
      meet();
      kvq_sequence_truncate(cache, child, 13, nullptr);
      other.join();
      if (child.save() != expected) ++n_different;
      if (!is_destroyed && parent.save() != expected) ++n_different;
    }
    CHECK_EQ(n_different, 0);
  }
}

TEST_CASE("caches of one context attend concurrently") {
  const Shape shape;
  const Text text(shape, 300, 1);
  const Context context = kvq_test::make_context(nullptr, 3);
  const std::vector<float> q = queries(shape, 1);
  std::vector<float> expected;
  const auto run = [&] {
    const Cache cache = kvq_test::make_cache(context, shape.options(), "int2+hadamard");
    Sequence sequence(cache);
    text.append(sequence, 0, 300, 64);
    return attend_last(shape, cache, {sequence}, 1, q);
  };
  expected = run();
  std::atomic<int> n_different{0};
  on_threads([&](int) {
    for (int round = 0; round < kvq_test::full_or_small(20, 4); ++round) {
      if (run() != expected) ++n_different;
    }
  });
  CHECK_EQ(n_different.load(), 0);
}

TEST_CASE("sequences of one cache are attended to by several threads at once") {
  const Shape shape{.n_layers = 1};
  const Text text(shape, 500, 1);
  const Context context = kvq_test::make_context(nullptr, 2);
  for (const std::string policy : {"int4", "fp16+snapkv:32"}) {
    CAPTURE(policy);
    const Cache cache = kvq_test::make_cache(context, shape.options(), policy);
    // Each thread has its own sequence, and all threads attend to the last one, too.
    const bool evicts = policy.find('+') != std::string::npos;
    std::vector<Sequence> sequences;
    std::vector<std::vector<float>> expected;
    const std::vector<float> q = queries(shape, 3);
    for (int32_t i = 0; i <= kThreads; ++i) {
      sequences.emplace_back(cache);
      text.append(sequences.back(), 0, 90 + 100 * i);
      expected.push_back(attend_last(shape, cache, {sequences.back()}, 3, q));
    }
    std::atomic<int> n_different{0};
    on_threads([&](int thread) {
      const auto own = static_cast<size_t>(thread);
      for (int round = 0; round < kvq_test::full_or_small(500, 50); ++round) {
        const size_t i = round % 2 == 1 ? size_t{kThreads} : own;
        if (attend_last(shape, cache, {sequences[i]}, 3, q) != expected[i]) ++n_different;
      }
      if (!evicts) return;
      Sequence fork = sequences[own].fork();
      attend_last(shape, cache, {fork}, 3, q);
      fork.compress();
    });
    CHECK_EQ(n_different.load(), 0);
  }
}

// Each thread's queries attend to eight tokens of its own, and as many tokens are kept as all threads attend to.
TEST_CASE("queries of several threads on one sequence all count for eviction") {
  constexpr int32_t kTokens = 200;
  constexpr int32_t kWindow = 32;
  constexpr int32_t kOfThread = kWindow / kThreads;  // queries, and tokens
  constexpr int32_t kFirst = 48;
  const Shape shape{.q_heads = 2, .kv_heads = 1, .head_dim = 32, .n_layers = 1};
  auto options = shape.options();
  options.rope = KVQ_ROPE_NONE;
  std::vector<float> k(size_t{kTokens} * 32, 0.0F);
  for (int32_t i = 0; i < kThreads * kOfThread; ++i) k[static_cast<size_t>((kFirst + i) * 32 + i / kOfThread)] = 8.0F;
  std::vector<int32_t> expected(kThreads * kOfThread + kWindow);
  std::iota(expected.begin(), expected.begin() + kThreads * kOfThread, kFirst);
  std::iota(expected.end() - kWindow, expected.end(), kTokens - kWindow);
  const Context context = kvq_test::make_context(nullptr, 2);
  for (const std::string method : {"snapkv", "h2o"}) {
    CAPTURE(method);
    const Cache cache = kvq_test::make_cache(
        context, options, "version: 1\neviction: {method: " + method + ", budget: 64, window: 32, kernel: 1}\n");
    int n_different = 0;
    for (int round = 0; round < kvq_test::full_or_small(200, 20); ++round) {
      Sequence sequence(cache);
      kvq_test::append(sequence, 0, kTokens, k.data(), k.data());
      on_threads([&](int thread) {
        std::vector<float> q(size_t{2} * 32, 0.0F);
        q[static_cast<size_t>(thread)] = q[static_cast<size_t>(32 + thread)] = 8.0F;
        for (int32_t query = 0; query < kOfThread; ++query) {
          attend_last(shape, cache, {sequence}, 1, q);
          sequence.usage();
          if (query % 4 == 0) sequence.fork();
        }
      });
      sequence.compress();
      if (kvq_test::decode(sequence, 0, 0, 0, 64, 32).positions != expected) ++n_different;
    }
    CHECK_EQ(n_different, 0);
  }
}

TEST_CASE("appending to one sequence does not disturb attention to another") {
  const Shape shape;
  const Text text(shape, 700, 1);
  const Context context = kvq_test::make_context(nullptr, 2);
  const Cache cache = kvq_test::make_cache(context, shape.options(), "int4");
  Sequence reader(cache);
  Sequence writer(cache);
  text.append(reader, 0, 200);
  const std::vector<float> q = queries(shape, 1);
  const std::vector<float> expected = attend_last(shape, cache, {reader}, 1, q);
  std::atomic<int> n_different{0};
  std::thread appending([&] { text.append(writer.get(), 0, 700, 5); });
  for (int round = 0; round < 100; ++round) {
    if (attend_last(shape, cache, {reader}, 1, q) != expected) ++n_different;
  }
  appending.join();
  CHECK_EQ(n_different.load(), 0);
  CHECK_EQ(writer.length(0), 700);
}

TEST_CASE("forks get policies of their own while other threads attend to what they share") {
  const Shape shape;
  const Text text(shape, 300, 1);
  const Context context = kvq_test::make_context(nullptr, 2);
  const std::vector<float> q = queries(shape, 1);
  const std::vector<std::string> formats{"int4", "gs2", "gt2", "int2+hadamard"};
  std::vector<kvq_test::Policy> policies;
  for (const std::string& format : formats) policies.push_back(kvq_test::load_plain_policy(context, format));
  for (int round = 0; round < kvq_test::full_or_small(20, 3); ++round) {
    const Cache cache = kvq_test::make_cache(context, shape.options(), "gs4");  // which knows none of them yet
    Sequence parent(cache);
    text.append(parent, 0, 300, 64);
    const std::vector<float> expected = attend_last(shape, cache, {parent}, 1, q);
    std::vector<std::vector<float>> recoded(kThreads);
    std::atomic<int> n_different{0};
    on_threads([&](int thread) {
      const auto own = static_cast<size_t>(thread);
      Sequence fork = parent.fork();
      if (attend_last(shape, cache, {parent}, 1, q) != expected) ++n_different;
      if (kvq_sequence_recode(cache, fork, policies[own % policies.size()], nullptr) != KVQ_OK) ++n_different;
      recoded[own] = attend_last(shape, cache, {fork}, 1, q);
      if (attend_last(shape, cache, {parent}, 1, q) != expected) ++n_different;
    });
    CHECK_EQ(n_different.load(), 0);
    for (size_t i = 0; i < recoded.size(); ++i) {
      Sequence alone = parent.fork();
      REQUIRE_EQ(kvq_sequence_recode(cache, alone, policies[i % policies.size()], nullptr), KVQ_OK);
      CHECK(attend_last(shape, cache, {alone}, 1, q) == recoded[i]);
    }
  }
}

TEST_CASE("threads append to sequences of their own and attend to them as one thread does") {
  constexpr int32_t kTokens = 200;
  constexpr int32_t kChunk = 37;  // pages fill and are sealed in the middle of calls
  const Shape shape;
  const std::vector<float> q = queries(shape, 1);
  std::vector<Text> texts;
  for (int thread = 0; thread < kThreads; ++thread)
    texts.emplace_back(shape, kTokens, 10 + static_cast<uint64_t>(thread));
  for (const std::string& policy : {std::string("int4+hadamard"), kCodesOfHeads, routed_policies()[0]}) {
    CAPTURE(policy);
    const Context context = kvq_test::make_context(nullptr, 2);
    const Cache cache = make_cache(context, shape.options(), policy);
    struct Conversation {
      std::vector<std::vector<float>> outputs;  // outputs of each layer after each chunk
      Snapshot snapshot;
    };
    const auto converse = [&](int thread) {
      Conversation result;
      Sequence sequence(cache);
      for (int32_t begin = 0; begin < kTokens; begin += kChunk) {
        texts[static_cast<size_t>(thread)].append(sequence, begin, std::min(begin + kChunk, kTokens));
        for (int32_t layer = 0; layer < shape.n_layers; ++layer) {
          result.outputs.push_back(attend_last(shape, cache, {sequence}, 1, q, layer));
        }
      }
      result.snapshot = sequence.save();
      return result;
    };
    std::vector<Conversation> expected;
    for (int thread = 0; thread < kThreads; ++thread) expected.push_back(converse(thread));
    CHECK(expected[0].snapshot != expected[1].snapshot);
    std::atomic<int> n_different{0};
    on_threads([&](int thread) {
      const Conversation& alone = expected[static_cast<size_t>(thread)];
      for (int round = 0; round < kvq_test::full_or_small(20, 3); ++round) {
        const Conversation found = converse(thread);
        if (found.outputs != alone.outputs || found.snapshot != alone.snapshot) ++n_different;
      }
    });
    CHECK_EQ(n_different.load(), 0);
    CHECK_EQ(cache.usage().scalars, 0);
  }
}

}  // namespace conformance::concurrency_test
