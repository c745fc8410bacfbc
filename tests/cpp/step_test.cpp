// Steps as objects that end themselves.
#include "model.h"

#include <array>
#include <stdexcept>
#include <utility>

namespace step_test {

constexpr int32_t kLayers = 2;

/// A cache whose pages are sealed as soon as they are full, with two sequences of 30 tokens.
struct Conversations {
  kvq::Context context;
  kvq::Cache cache = small_cache(context, "int4", kLayers);
  kvq::Sequence a{cache}, b{cache};

  Conversations() {
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      fill(a, 30, 1, layer);
      fill(b, 30, 3, layer);
    }
  }

  kvq::Step begin(std::span<const int32_t> counts) { return cache.begin_step(kvq::pointers(a, b), counts); }

  /// Extends all layers by `n` tokens of both sequences.
  void extend(int32_t n) {
    const std::array counts{n, n};
    const std::vector<float> k = tokens(2 * n, 5), v = tokens(2 * n, 6), q = queries(2 * n, 7);
    std::vector<float> out(q.size());
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      cache.extend(layer,
                   {.sequences = kvq::pointers(a, b), .token_counts = counts, .k = k, .v = v, .q = q, .output = out});
    }
  }
};

TEST_CASE("a step keeps a path of a tree, whose tokens see what the mask says") {
  Conversations it, expected;
  kvq::Step step = it.cache.begin_step(kvq::pointers(it.a), std::array{3});
  const std::vector<float> k = tokens(3, 5), v = tokens(3, 6), q = queries(3, 7);
  std::vector<float> tree(q.size()), path(2 * kQueryScalars);
  const std::array positions{30, 30, 31};  // two siblings, and a child of the second one
  const std::array<uint32_t, 3> mask{1, 2, 6};
  const std::array three{3};
  const std::array two{2};
  const std::array kept{1, 2};
  const auto last = [](const std::vector<float>& x, size_t n) { return std::span(x).last(n); };
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    it.cache.extend(layer, {.sequences = kvq::pointers(it.a),
                            .token_counts = three,
                            .positions = positions,
                            .k = k,
                            .v = v,
                            .q = q,
                            .output = tree,
                            .mask_slots = 3,
                            .mask = mask});
    expected.cache.extend(layer, {.sequences = kvq::pointers(expected.a),
                                  .token_counts = two,
                                  .k = last(k, 2 * kTokenScalars),
                                  .v = last(v, 2 * kTokenScalars),
                                  .q = last(q, 2 * kQueryScalars),
                                  .output = path});
  }
  step.commit(two, kept);
  CHECK(it.a.save() == expected.a.save());
  for (size_t i = 0; i < path.size(); ++i) CHECK(tree[kQueryScalars + i] == doctest::Approx(path[i]).epsilon(1e-3));
  CHECK_THROWS_WITH(it.cache.attend(0, {.sequences = kvq::pointers(it.a),
                                        .q = std::span(q).first(kQueryScalars),
                                        .output = std::span(tree).first(kQueryScalars),
                                        .mask = std::span(mask).first(1),
                                        .mask_slots = 40}),
                    "mask has 1 elements instead of 2 (sum(query_counts) * words(mask_slots))");
}

TEST_CASE("a step keeps the tokens that are committed, as if no others had been appended") {
  Conversations it, expected;
  kvq::Step step = it.begin(std::array{5, 5});
  it.extend(5);
  step.commit(std::array{3, 0});
  CHECK(!step.active());
  const std::vector<float> k = tokens(10, 5), v = tokens(10, 6);
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    CHECK(it.a.length(layer) == 33);
    CHECK(it.b.length(layer) == 30);
    expected.a.append(layer, 3, std::span(k).first(3 * kTokenScalars), std::span(v).first(3 * kTokenScalars));
  }
  CHECK(it.a.save() == expected.a.save());
  CHECK(it.b.save() == expected.b.save());

  step = it.begin({});  // one token each
  it.extend(1);
  step.commit();
  CHECK(it.a.length(0) == 34);
  CHECK(it.b.length(1) == 31);
}

TEST_CASE("a step takes its tokens back when it is aborted, dropped, assigned to or left by an exception") {
  Conversations it;
  const auto before = it.a.save();
  const auto is_as_before = [&] { return it.a.save() == before && it.b.length(1) == 30; };
  kvq::Step step = it.begin(std::array{4, 4});
  it.extend(4);
  step.abort();
  CHECK(is_as_before());
  step.abort();  // has ended, nothing happens
  CHECK_FAILS(KVQ_E_STATE, "the step has ended", step.commit());
  CHECK_FAILS(KVQ_E_STATE, "the step has ended", step.commit(std::array{1, 1}));
  {
    const kvq::Step dropped = it.begin(std::array{4, 4});
    it.extend(4);
  }
  CHECK(is_as_before());
  CHECK_THROWS_AS(
      [&] {
        const kvq::Step left = it.begin(std::array{4, 4});
        it.extend(4);
        throw std::runtime_error("the sampler has failed");
      }(),
      std::runtime_error);
  CHECK(is_as_before());

  step = it.begin(std::array{4, 4});
  it.extend(4);
  kvq::Step moved = std::move(step);
  CHECK(moved.active());
  moved = kvq::Step();
  CHECK(is_as_before());
  { const kvq::Step again(it.cache, kvq::pointers(it.a)); }
  CHECK(is_as_before());
}

TEST_CASE("what a step refuses changes nothing, and the step goes on") {
  Conversations it;
  CHECK_FAILS(KVQ_E_ARGUMENT, "token_counts has 1 elements instead of 2", it.begin(std::array{4}));
  CHECK_FAILS(KVQ_E_ARGUMENT, "must be at least 1", it.begin(std::array{4, 0}));
  kvq::Step step = it.begin(std::array{5, 4});
  it.extend(4);
  CHECK_FAILS(KVQ_E_STATE, "in a step", it.a.truncate(30));
  CHECK_FAILS(KVQ_E_STATE, "in a step", it.a.fork());
  CHECK_FAILS(KVQ_E_STATE, "in a step", it.a.recode());
  CHECK_FAILS(KVQ_E_STATE, "in a step", it.cache.save(kvq::pointers(it.b, it.a)));
  CHECK_FAILS(KVQ_E_STATE, "in a step already", it.begin({}));
  fill(it.a, 1, 9, 1);  // of one layer
  CHECK_FAILS(KVQ_E_STATE, "cannot keep all tokens", step.commit());
  CHECK_FAILS(KVQ_E_ARGUMENT, "has received 4 tokens", step.commit(std::array{5, 4}));
  CHECK_FAILS(KVQ_E_ARGUMENT, "token_counts has 1 elements instead of 2", step.commit(std::array{4}));
  CHECK(step.active());
  step.commit(std::array{4, 4});
  CHECK(it.a.length(1) == 34);
}

TEST_CASE("sequences of a step may be ended apart by the structs of kvq.h") {
  Conversations it;
  auto both = kvq::initialised<kvq_step_batch>();
  auto list = kvq::pointers(it.a, it.b);
  const std::array counts{2, 2};
  both.n_sequences = 2;
  both.sequences = list.data();
  both.token_counts = counts.data();
  it.cache.step_begin(both);
  it.extend(2);
  auto first = both, second = both;
  first.n_sequences = second.n_sequences = 1;
  second.sequences = &list[1];
  it.cache.step_commit(first);
  it.cache.step_abort(second);
  CHECK(it.a.length(0) == 32);
  CHECK(it.b.length(0) == 30);
}

}  // namespace step_test
