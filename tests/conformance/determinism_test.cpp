#include "attention_error.h"
#include "conversation.h"
#include "support/random.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>

namespace conformance::determinism_test {

using kvq_test::Cache;
using kvq_test::Context;
using kvq_test::Sequence;

namespace {

constexpr int32_t kLengths[] = {2049, 33, 700, 64, 1};

// Sequences of several lengths in one cache.
struct Batch {
  Batch(Context context_given, const Shape& shape, const std::string& policy)
      : context(std::move(context_given)), cache(make_cache(context, shape.options(), policy)) {
    for (size_t i = 0; i < std::size(kLengths); ++i) {
      sequences.emplace_back(cache);
      Text(shape, kLengths[i], i).append(sequences.back(), 0, kLengths[i]);
      list.push_back(sequences.back());
    }
  }

  Context context;
  Cache cache;
  std::vector<Sequence> sequences;
  std::vector<const kvq_sequence*> list;
};

const Shape kShape{.q_heads = 8, .kv_heads = 2, .head_dim = 64, .n_layers = 1};

template <typename T>
std::vector<T> part(const std::vector<T>& all, size_t index, size_t width) {
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(index * width);
  return {begin, begin + static_cast<std::ptrdiff_t>(width)};
}

// A parallel_for hook that runs backwards.
int32_t run_backwards(void* user, int32_t n, kvq_parallel_body body, void* argument) {
  ++*static_cast<int*>(user);
  for (int32_t i = n - 1; i >= 0; --i) body(argument, i);
  return 0;
}

}  // namespace

TEST_CASE("any number of threads and any order gives the same bits") {
  const std::vector<float> q = queries(kShape, std::size(kLengths));
  for (const std::string& isa : kvq_test::cpu_isa_names()) {
    for (const std::string& format : cpu_formats()) {
      CAPTURE(isa);
      CAPTURE(format);
      const Batch single(kvq_test::make_context(isa.c_str(), 1), kShape, format);
      const std::vector<float> expected = attend_last(kShape, single.cache, single.list, 1, q);
      const kvq_test::Snapshot snapshot = single.sequences[0].save();
      for (const int32_t n_threads : {2, 3, 8}) {
        const Batch batch(kvq_test::make_context(isa.c_str(), n_threads), kShape, format);
        CHECK(attend_last(kShape, batch.cache, batch.list, 1, q) == expected);
        CHECK(batch.sequences[0].save() == snapshot);
      }
      int n_loops = 0;
      auto options = kvq_test::initialised<kvq_context_options>();
      options.cpu_isa = isa.c_str();
      options.parallel_for = run_backwards;
      options.parallel_for_user = &n_loops;
      const Batch backwards(kvq_test::Context(options), kShape, format);
      CHECK(attend_last(kShape, backwards.cache, backwards.list, 1, q) == expected);
      CHECK(backwards.sequences[0].save() == snapshot);
      CHECK(n_loops > 0);
    }
  }
}

TEST_CASE("a sequence's results do not depend on what else is in the batch") {
  const size_t width = kShape.query_scalars();
  for (const int32_t count : {1, 3}) {
    const size_t rows = static_cast<size_t>(count) * width;
    for (const std::string& isa : kvq_test::cpu_isa_names()) {
      for (const std::string& format : cpu_formats()) {
        CAPTURE(isa);
        CAPTURE(format);
        const Batch batch(kvq_test::make_context(isa.c_str(), 2), kShape, format);
        std::vector<const kvq_sequence*> long_enough;
        for (size_t i = 0; i < batch.list.size(); ++i) {
          if (kLengths[i] >= count) long_enough.push_back(batch.list[i]);
        }
        const std::vector<float> q = queries(kShape, long_enough.size() * static_cast<size_t>(count));
        const std::vector<float> together = attend_last(kShape, batch.cache, long_enough, count, q);
        for (size_t i = 0; i < long_enough.size(); ++i) {
          const std::vector<float> alone = attend_last(kShape, batch.cache, {long_enough[i]}, count, part(q, i, rows));
          CHECK(alone == part(together, i, rows));
        }
        std::vector<const kvq_sequence*> reversed(long_enough.rbegin(), long_enough.rend());
        std::vector<float> q_reversed;
        for (size_t i = reversed.size(); i-- > 0;) {
          const std::vector<float> rows_of_one = part(q, i, rows);
          q_reversed.insert(q_reversed.end(), rows_of_one.begin(), rows_of_one.end());
        }
        const std::vector<float> backwards = attend_last(kShape, batch.cache, reversed, count, q_reversed);
        for (size_t i = 0; i < reversed.size(); ++i) {
          CHECK(part(backwards, i, rows) == part(together, reversed.size() - 1 - i, rows));
        }
      }
    }
  }
}

TEST_CASE("many queries at once give what they give one by one, up to rounding") {
  constexpr int32_t kQueries = 70;
  const size_t width = kShape.query_scalars();
  const std::vector<float> q = queries(kShape, kQueries);
  for (const std::string& isa : kvq_test::cpu_isa_names()) {
    for (const std::string& format : cpu_formats()) {
      CAPTURE(isa);
      CAPTURE(format);
      const Batch batch(kvq_test::make_context(isa.c_str(), 1), kShape, format);
      const std::vector<float> together = attend_last(kShape, batch.cache, {batch.list[2]}, kQueries, q);
      double worst = 0.0;
      for (int32_t i = 0; i < kQueries; ++i) {
        const int32_t position = 700 - kQueries + i;
        std::vector<float> alone(width);
        auto one = kvq_test::initialised<kvq_attend_batch>();
        one.n_sequences = 1;
        one.sequences = &batch.list[2];
        one.query_positions = &position;
        one.q = q.data() + static_cast<size_t>(i) * width;
        one.output = alone.data();
        kvq_test::attend(batch.cache, 0, one);
        for (size_t c = 0; c < width; ++c) {
          const double difference = std::fabs(double{alone[c]} - double{together[static_cast<size_t>(i) * width + c]});
          worst = std::max(worst, difference);
        }
      }
      // Values have size 4; both sides may round as attention does.
      const bool is_int8 = format.rfind("int8", 0) == 0;
      const bool fixed_point = is_int8 ? conformance::has_fixed_point_products(isa) : format.rfind("int", 0) == 0;
      CHECK(worst <= 4.0 * 2.0 * (!fixed_point ? 1e-5 : is_int8 ? 1e-4 : 2e-2));
    }
  }
}

TEST_CASE("instruction sets store the same bytes and read each other's snapshots") {
  const Shape shape{.q_heads = 2, .kv_heads = 2, .head_dim = 80, .n_layers = 1};
  const Text text(shape, 400, 3);
  for (const std::string& policy : all_policies()) {
    if (policy.find("layers") != std::string::npos) continue;
    CAPTURE(policy);
    kvq_test::Snapshot first;
    for (const std::string& isa : kvq_test::cpu_isa_names()) {
      CAPTURE(isa);
      const Context context = kvq_test::make_context(isa.c_str());
      const Cache cache = make_cache(context, shape.options(), policy);
      Sequence sequence(cache);
      text.append(sequence, 0, 400, 37);
      const kvq_test::Snapshot snapshot = sequence.save();
      if (first.empty()) first = snapshot;
      CHECK(snapshot == first);
      Sequence loaded = kvq_test::Sequence::load(cache, first);
      const std::vector<float> q = queries(shape, 1);
      CHECK(attend_last(shape, cache, {loaded}, 1, q) == attend_last(shape, cache, {sequence}, 1, q));
    }
  }
}

TEST_CASE("the same call twice gives the same bits") {
  for (const std::string& format : cpu_formats()) {
    const Batch batch(kvq_test::make_context(nullptr, 2), kShape, format);
    const std::vector<float> q = queries(kShape, std::size(kLengths));
    CHECK(attend_last(kShape, batch.cache, batch.list, 1, q) == attend_last(kShape, batch.cache, batch.list, 1, q));
  }
}

}  // namespace conformance::determinism_test
