// Pages made ahead change where tokens are stored, and nothing else.
#include "conversation.h"
#include "support/random.h"

#include <doctest/doctest.h>

#include <string>

namespace conformance {

using kvq_test::Cache;
using kvq_test::Context;
using kvq_test::Sequence;

namespace {

void reserve(kvq_cache* cache, kvq_sequence* sequence, int32_t tokens) {
  kvq_test::require([&](kvq_error* error) { return kvq_sequence_reserve(cache, sequence, tokens, error); });
}

int32_t room(const kvq_sequence* sequence, int32_t layer = 0) {
  int32_t tokens = -1;
  kvq_test::require([&](kvq_error* error) { return kvq_sequence_room(sequence, layer, &tokens, error); });
  return tokens;
}

uint64_t page_bytes(const kvq_usage& usage) { return usage.sealed_bytes + usage.fp16_bytes; }

std::vector<std::string> policies() {
  std::vector<std::string> policies = sequence_policies();
  for (const std::string& policy : coded_policies()) policies.push_back(policy);
  policies.emplace_back("version: 1\nkeys: int2\nvalues: int3\nrecent: 3\n");
  policies.emplace_back("version: 1\nkeys: int4\nvalues: int4\nsink: 40\n");
  return policies;
}

// Two sequences that live through the same; pages are made ahead for one of them now and then.
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
      if (isa == kvq_test::kCuda && policy.find("commvq") != std::string::npos) continue;
      const Context context = kvq_test::make_context(isa.c_str());
      const Cache cache = make_cache(context.get(), shape.options(), policy);
      const auto make = [&] { return kvq_test::make_sequence(cache.get()); };
      std::vector<Pair> pairs;
      pairs.push_back({make(), make()});
      kvq_test::Random random(7);
      for (int step = 0; step < 60; ++step) {
        CAPTURE(step);
        Pair& pair = pairs[static_cast<size_t>(random.integer(0, static_cast<int32_t>(pairs.size()) - 1))];
        const int32_t length = kvq_test::length(pair.plain.get());
        const int32_t n =
            std::min(random.integer(0, 3) == 0 ? random.integer(33, 200) : random.integer(1, 40), 1200 - length);
        switch (random.integer(0, 7)) {
          case 0:
            reserve(cache.get(), pair.reserved.get(), random.integer(0, 300));
            break;
          case 1:
            for (Sequence* each : {&pair.reserved, &pair.plain}) {
              kvq_test::truncate(cache.get(), each->get(), length / 64 * 32);
            }
            break;
          case 2:
            if (pairs.size() > 3) pairs.erase(pairs.begin() + random.integer(0, 2));
            pairs.push_back({kvq_test::fork(cache.get(), pairs.back().reserved.get()),
                             kvq_test::fork(cache.get(), pairs.back().plain.get())});
            break;
          default:
            for (Sequence* each : {&pair.reserved, &pair.plain}) {
              if (n > 0) text.append(cache.get(), each->get(), length, length + n);
            }
        }
        const Pair& seen = pairs[static_cast<size_t>(random.integer(0, static_cast<int32_t>(pairs.size()) - 1))];
        REQUIRE(kvq_test::save(cache.get(), seen.reserved.get()) == kvq_test::save(cache.get(), seen.plain.get()));
        if (kvq_test::length(seen.plain.get()) == 0) continue;
        const std::vector<float> q = queries(shape, 1);
        CHECK(attend_last(shape, cache.get(), {seen.reserved.get()}, 1, q) ==
              attend_last(shape, cache.get(), {seen.plain.get()}, 1, q));
      }
      pairs.clear();
      const kvq_usage left = kvq_test::usage(cache.get());
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
    const Cache cache = make_cache(context.get(), shape.options(), policy);
    for (const int32_t begin : {0, 1, 40, 64}) {
      CAPTURE(begin);
      const Sequence sequence = kvq_test::make_sequence(cache.get());
      if (begin > 0) text.append(cache.get(), sequence.get(), 0, begin);
      CHECK(room(sequence.get()) == 0);
      reserve(cache.get(), sequence.get(), 300);
      const int32_t tokens = room(sequence.get());
      CHECK(tokens >= 300);
      CHECK(tokens < 300 + KVQ_PAGE_SLOTS);
      const uint64_t bytes = page_bytes(kvq_test::usage(cache.get()));
      CHECK(page_bytes(kvq_test::usage(cache.get(), sequence.get())) == bytes);
      text.append(cache.get(), sequence.get(), begin, begin + tokens, 9);
      CHECK(room(sequence.get()) == 0);
      CHECK(room(sequence.get(), 1) == 0);
      CHECK(page_bytes(kvq_test::usage(cache.get())) == bytes);
      CHECK(page_bytes(kvq_test::usage(cache.get(), sequence.get())) == bytes);
      text.append(cache.get(), sequence.get(), begin + tokens, begin + tokens + 1);
      CHECK(kvq_test::length(sequence.get()) == begin + tokens + 1);
    }
  }
}

TEST_CASE("truncating makes room again, giving back takes it") {
  const Shape shape;
  const Text text(shape, 400, 1);
  const Context context = kvq_test::make_context();
  const Cache cache = make_cache(context.get(), shape.options(), "int4");
  const Sequence sequence = kvq_test::make_sequence(cache.get());
  reserve(cache.get(), sequence.get(), 320);
  CHECK(room(sequence.get()) == 320);
  text.append(cache.get(), sequence.get(), 0, 200, 25);
  CHECK(room(sequence.get()) == 120);
  const uint64_t bytes = page_bytes(kvq_test::usage(cache.get()));
  kvq_test::truncate(cache.get(), sequence.get(), 96);
  CHECK(room(sequence.get()) == 224);
  reserve(cache.get(), sequence.get(), 224);  // nothing new is needed
  CHECK(page_bytes(kvq_test::usage(cache.get())) == bytes);

  text.append(cache.get(), sequence.get(), 96, 160, 32);
  const Sequence child = kvq_test::fork(cache.get(), sequence.get());
  kvq_test::truncate(cache.get(), sequence.get(), 64);
  CHECK(room(sequence.get()) < 256);  // the child holds some of the pages
  reserve(cache.get(), sequence.get(), 256);
  CHECK(room(sequence.get()) == 256);

  reserve(cache.get(), sequence.get(), 0);
  CHECK(room(sequence.get()) == 0);
  CHECK(page_bytes(kvq_test::usage(cache.get(), sequence.get())) < bytes);
}

}  // namespace conformance
