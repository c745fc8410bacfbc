// Preallocated pages change where tokens are stored, and nothing else.
#include "conversation.h"
#include "support/random.h"

#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

namespace conformance::reserve_test {

using kvq_test::Cache;
using kvq_test::Context;
using kvq_test::Sequence;

namespace {

uint64_t page_bytes(const kvq_usage& usage) { return usage.sealed_bytes + usage.fp16_bytes; }

std::vector<std::string> policies() {
  std::vector<std::string> policies = sequence_policies();
  for (const std::string& policy : coded_policies()) policies.push_back(policy);
  for (const std::string& policy : gain_shape_policies()) policies.push_back(policy);
  for (const std::string& policy : centred_policies()) policies.push_back(policy);
  policies.emplace_back("version: 1\nkeys: int2\nvalues: int3\nrecent: 3\n");
  policies.emplace_back("version: 1\nkeys: int4\nvalues: int4\nsink: 40\n");
  return policies;
}

// Two sequences with the same history; one of them gets preallocated pages now and then.
struct Pair {
  Sequence reserved;
  Sequence plain;
};

}  // namespace

TEST_CASE("a sequence with pages made ahead holds the same bytes as one without, whatever happens to it") {
  const Shape shape;
  const Text text(shape, 1200, 1);
  for (const std::string& isa : {kvq_test::backends().front(), kvq_test::backends().back()}) {
    for (const std::string& policy : policies()) {
      CAPTURE(isa);
      CAPTURE(policy);
      const Context context = kvq_test::make_context(isa.c_str());
      const Cache cache = make_cache(context, shape.options(), policy);
      const auto make = [&] { return kvq_test::Sequence(cache); };
      std::vector<Pair> pairs;
      pairs.push_back({make(), make()});
      kvq_test::Random random(7);
      for (int step = 0; step < 60; ++step) {
        CAPTURE(step);
        Pair& pair = pairs[static_cast<size_t>(random.integer(0, static_cast<int32_t>(pairs.size()) - 1))];
        const int32_t length = pair.plain.length(0);
        const int32_t n =
            std::min(random.integer(0, 3) == 0 ? random.integer(33, 200) : random.integer(1, 40), 1200 - length);
        switch (random.integer(0, 7)) {
          case 0:
            pair.reserved.reserve(random.integer(0, 300));
            break;
          case 1:
            for (Sequence* each : {&pair.reserved, &pair.plain}) {
              each->truncate(length / 64 * 32);
            }
            break;
          case 2:
            if (pairs.size() > 3) pairs.erase(pairs.begin() + random.integer(0, 2));
            pairs.push_back({pairs.back().reserved.fork(), pairs.back().plain.fork()});
            break;
          default:
            for (Sequence* each : {&pair.reserved, &pair.plain}) {
              if (n > 0) text.append(each->get(), length, length + n);
            }
        }
        const Pair& seen = pairs[static_cast<size_t>(random.integer(0, static_cast<int32_t>(pairs.size()) - 1))];
        REQUIRE(seen.reserved.save() == seen.plain.save());
        if (seen.plain.length(0) == 0) continue;
        const std::vector<float> q = queries(shape, 1);
        CHECK(attend_last(shape, cache, {seen.reserved}, 1, q) == attend_last(shape, cache, {seen.plain}, 1, q));
      }
      pairs.clear();
      const kvq_usage left = cache.usage();
      CHECK(page_bytes(left) == 0);
      CHECK(left.sealed_pages + left.fp16_pages == 0);
      CHECK(left.scalars == 0);
    }
  }
}

TEST_CASE("while there is room, appending takes no page memory") {
  const Shape shape;
  const Text text(shape, 1000, 1);
  for (const std::string& policy : policies()) {
    CAPTURE(policy);
    const Context context = kvq_test::make_context();
    const Cache cache = make_cache(context, shape.options(), policy);
    for (const int32_t begin : {0, 1, 40, 64}) {
      CAPTURE(begin);
      Sequence sequence(cache);
      if (begin > 0) text.append(sequence, 0, begin);
      CHECK(sequence.room(0) == 0);
      sequence.reserve(300);
      const int32_t tokens = sequence.room(0);
      CHECK(tokens >= 300);
      CHECK(tokens < 300 + KVQ_PAGE_SLOTS);
      const uint64_t bytes = page_bytes(cache.usage());
      CHECK(page_bytes(sequence.usage()) == bytes);
      text.append(sequence, begin, begin + tokens, 9);
      CHECK(sequence.room(0) == 0);
      CHECK(sequence.room(1) == 0);
      CHECK(page_bytes(cache.usage()) == bytes);
      CHECK(page_bytes(sequence.usage()) == bytes);
      text.append(sequence, begin + tokens, begin + tokens + 1);
      CHECK(sequence.length(0) == begin + tokens + 1);
    }
  }
}

TEST_CASE("what sequences with pages made ahead take is predicted to the byte") {
  const Shape shape;
  const Text text(shape, 1000, 1);
  for (const char* device : kvq_test::devices()) {
    for (const std::string& policy : policies()) {
      CAPTURE(policy);
      const Context context = kvq_test::make_context(device);
      const Cache cache = make_cache(context, shape.options(), policy);
      for (const int32_t tokens : {0, 1, 32, 33, 999}) {
        CAPTURE(tokens);
        const kvq_usage expected = cache.predict_usage(2, tokens, 0);
        std::vector<Sequence> sequences;
        for (int32_t i = 0; i < 2; ++i) {
          sequences.emplace_back(cache);
          sequences.back().reserve(tokens);
          if (tokens > 0) text.append(sequences.back(), 0, tokens, i == 0 ? 9 : tokens);
        }
        const kvq_usage found = cache.usage();
        CHECK(found.sealed_bytes == expected.sealed_bytes);
        CHECK(found.fp16_bytes == expected.fp16_bytes);
        CHECK(found.metadata_bytes == expected.metadata_bytes);
        CHECK(found.workspace_bytes == expected.workspace_bytes);
        CHECK(std::memcmp(&found, &expected, sizeof(found)) == 0);
      }
    }
  }
}

TEST_CASE("truncating makes room again, giving back takes it") {
  const Shape shape;
  const Text text(shape, 400, 1);
  const Context context = kvq_test::make_context();
  const Cache cache = make_cache(context, shape.options(), "int4");
  Sequence sequence(cache);
  sequence.reserve(320);
  CHECK(sequence.room(0) == 320);
  text.append(sequence, 0, 200, 25);
  CHECK(sequence.room(0) == 120);
  const uint64_t bytes = page_bytes(cache.usage());
  sequence.truncate(96);
  CHECK(sequence.room(0) == 224);
  sequence.reserve(224);  // nothing new is needed
  CHECK(page_bytes(cache.usage()) == bytes);

  text.append(sequence, 96, 160, 32);
  Sequence child = sequence.fork();
  sequence.truncate(64);
  CHECK(sequence.room(0) < 256);  // the child holds some of the pages
  sequence.reserve(256);
  CHECK(sequence.room(0) == 256);

  sequence.reserve(0);
  CHECK(sequence.room(0) == 0);
  CHECK(page_bytes(sequence.usage()) < bytes);
}

}  // namespace conformance::reserve_test
