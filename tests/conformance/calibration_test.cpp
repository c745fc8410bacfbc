// Sequences that find scales of channels by their own first tokens.
#include "conversation.h"
#include "support/reference.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace conformance::calibration_test {
namespace {

using kvq_test::Cache;
using kvq_test::Context;
using kvq_test::Decoded;
using kvq_test::Sequence;
using kvq_test::Snapshot;

constexpr int32_t kWaits = 128;

std::string policy_of(const std::string& keys, const std::string& values, const std::string& more = "") {
  return "version: 1\nkeys: " + keys + "\nvalues: " + values + "\ncalibrate: first\n" + more;
}
const std::string kGs2 = policy_of("gs2", "gs2");

std::vector<std::string> policies() {
  return {kGs2, policy_of("gs4", "gt2", "sink: 0\nrecent: 2\n"), policy_of("int4+hadamard", "int2"),
          policy_of("int3", "fp16", "layers:\n  - {range: [1, 1], keys: fp16, values: fp16}\n")};
}

// A text whose keys and values have a few large channels and offsets; queries are small where keys are large.
struct Text {
  Text(const Shape& shape_, int32_t n_, uint64_t seed) : shape(shape_), n(n_) {
    for (int32_t layer = 0; layer < shape.n_layers; ++layer) {
      const uint64_t own = 100 * seed + 3 * static_cast<uint64_t>(layer);
      k.push_back(kvq_test::normal_tensor(static_cast<size_t>(n) * shape.token_scalars(), own));
      v.push_back(kvq_test::normal_tensor(static_cast<size_t>(n) * shape.token_scalars(), own + 1));
      q.push_back(kvq_test::normal_tensor(static_cast<size_t>(n) * shape.query_scalars(), own + 2));
      for (size_t i = 0; i < k.back().size(); ++i) {
        const size_t channel = i % static_cast<size_t>(shape.head_dim);
        k.back()[i] = size(channel) * (k.back()[i] + (channel % 16 == 5 ? 3.0F : 0.0F));
        v.back()[i] = size(channel + 7) * v.back()[i] + (channel % 16 == 9 ? 2.0F : 0.0F);
      }
      for (size_t i = 0; i < q.back().size(); ++i) q.back()[i] /= size(i % static_cast<size_t>(shape.head_dim));
    }
  }
  // Pairs of channels alike, of both pairings.
  float size(size_t channel) const {
    const size_t half = static_cast<size_t>(shape.head_dim) / 2;
    return channel % half % 11 == 3 ? 12.0F : channel % half % 5 == 1 ? 0.5F : 1.0F;
  }
  // Token t becomes token t % period.
  void repeat(int32_t period, int32_t until) {
    for (auto* tensors : {&k, &v, &q}) {
      for (std::vector<float>& of_layer : *tensors) {
        const size_t width = of_layer.size() / static_cast<size_t>(n);
        for (size_t t = 0; t < static_cast<size_t>(until); ++t) {
          std::copy_n(of_layer.begin() + static_cast<ptrdiff_t>(t % static_cast<size_t>(period) * width), width,
                      of_layer.begin() + static_cast<ptrdiff_t>(t * width));
        }
      }
    }
  }

  const float* keys(int32_t layer, int32_t t) const { return at(k, layer, t, shape.token_scalars()); }
  const float* values(int32_t layer, int32_t t) const { return at(v, layer, t, shape.token_scalars()); }
  const float* queries(int32_t layer, int32_t t) const { return at(q, layer, t, shape.query_scalars()); }

  Shape shape;
  int32_t n;
  std::vector<std::vector<float>> k, v, q;

 private:
  static const float* at(const std::vector<std::vector<float>>& of, int32_t layer, int32_t t, size_t width) {
    return of[static_cast<size_t>(layer)].data() + static_cast<size_t>(t) * width;
  }
};

std::vector<float> extend(const Cache& cache, Sequence& sequence, const Text& text, int32_t layer, int32_t begin,
                          int32_t n) {
  kvq_sequence* pointer = sequence.get();
  std::vector<float> out(static_cast<size_t>(n) * text.shape.query_scalars());
  auto batch = kvq_test::initialised<kvq_extend_batch>();
  batch.n_sequences = 1;
  batch.sequences = &pointer;
  batch.token_counts = &n;
  batch.k = text.keys(layer, begin);
  batch.v = text.values(layer, begin);
  batch.q = text.queries(layer, begin);
  batch.output = out.data();
  kvq_test::extend(cache, layer, batch);
  return out;
}

enum class Way { kExtend, kAttend, kAppend };

// Tokens [begin, end), `chunk` at a time.
void feed(const Cache& cache, Sequence& sequence, const Text& text, Way way, int32_t chunk, int32_t begin,
          int32_t end) {
  for (int32_t at = begin; at < end; at += chunk) {
    const int32_t n = std::min(chunk, end - at);
    for (int32_t layer = 0; layer < text.shape.n_layers; ++layer) {
      if (way == Way::kExtend) {
        extend(cache, sequence, text, layer, at, n);
        continue;
      }
      kvq_test::append(sequence, layer, n, text.keys(layer, at), text.values(layer, at));
      if (way == Way::kAppend) continue;
      const std::vector<float> q(text.queries(layer, at),
                                 text.queries(layer, at) + static_cast<size_t>(n) * text.shape.query_scalars());
      attend_last(text.shape, cache, {sequence.get()}, n, q, layer);
    }
  }
}

struct Conversation {
  Conversation(const std::string& backend, const std::string& policy, const Shape& shape = {})
      : context(kvq_test::make_context(backend.c_str(), 2)),
        cache(make_cache(context, shape.options(), policy)),
        sequence(cache) {}

  uint64_t sealed_pages() const { return sequence.usage().sealed_pages; }

  Context context;
  Cache cache;
  Sequence sequence;
};

Snapshot saved(const std::string& backend, const std::string& policy, const Text& text, Way way, int32_t chunk) {
  Conversation conversation(backend, policy);
  feed(conversation.cache, conversation.sequence, text, way, chunk, 0, text.n - 1);
  feed(conversation.cache, conversation.sequence, text, way, 1, text.n - 1, text.n);
  return conversation.sequence.save();
}

// Root mean square error of all that is stored in the first layer, in units of scores: keys times the channel's query
// size.
double error_of(const Sequence& sequence, const Text& text) {
  double sum = 0.0;
  double all = 0.0;
  for (int32_t head = 0; head < text.shape.kv_heads; ++head) {
    const Decoded tokens = kvq_test::decode(sequence, 0, head, 0, text.n, text.shape.head_dim);
    const kvq_test::Rotation rotation = kvq_test::Rotation::from(text.shape.options());
    const auto dim = static_cast<size_t>(text.shape.head_dim);
    for (size_t t = 0; t < static_cast<size_t>(text.n); ++t) {
      const float* given = text.keys(0, static_cast<int32_t>(t)) + static_cast<size_t>(head) * dim;
      std::vector<double> key(given, given + dim);
      rotation.apply(key, static_cast<int32_t>(t));
      for (size_t c = 0; c < dim; ++c) {
        sum += std::pow((double{tokens.k[t * dim + c]} - key[c]) / text.size(c), 2.0);
        all += std::pow(key[c] / text.size(c), 2.0);
      }
    }
  }
  return std::sqrt(sum / all);
}

}  // namespace

TEST_CASE("the same pages result for every way of cutting a prompt, on every device") {
  const Text text(Shape{}, 401, 1);
  for (const std::string& policy : policies()) {
    CAPTURE(policy);
    const Snapshot expected = saved(kvq_test::cpu_isa_names().front(), policy, text, Way::kExtend, 32);
    for (const std::string& backend : kvq_test::backends()) {
      CAPTURE(backend);
      for (const int32_t chunk : {1, 32, 100, 400}) {
        CAPTURE(chunk);
        CHECK(saved(backend, policy, text, Way::kExtend, chunk) == expected);
        CHECK(saved(backend, policy, text, Way::kAttend, chunk) == expected);
      }
      // Without queries, other scales.
      const Snapshot alone = saved(backend, policy, text, Way::kAppend, 32);
      CHECK(alone != expected);
      CHECK(saved(backend, policy, text, Way::kAppend, 400) == alone);
    }
  }
}

TEST_CASE("pages wait in FP16 for 128 tokens, then all are sealed but those that the policy leaves") {
  const Text text(Shape{}, 300, 2);
  for (const std::string& backend : kvq_test::backends()) {
    CAPTURE(backend);
    Conversation waiting(backend, kGs2);
    Conversation plain(backend, "gs2");
    feed(waiting.cache, waiting.sequence, text, Way::kAttend, 32, 0, kWaits);
    CHECK(waiting.sealed_pages() == 0);
    feed(waiting.cache, waiting.sequence, text, Way::kAttend, 1, kWaits, kWaits + 1);
    feed(plain.cache, plain.sequence, text, Way::kAttend, 1, 0, kWaits + 1);
    CHECK(waiting.sealed_pages() == plain.sealed_pages());
    // An extension seals at once.
    Conversation extended(backend, kGs2);
    feed(extended.cache, extended.sequence, text, Way::kExtend, 64, 0, kWaits);
    CHECK(extended.sealed_pages() > 0);
    feed(waiting.cache, waiting.sequence, text, Way::kExtend, 7, kWaits + 1, 300);
    feed(plain.cache, plain.sequence, text, Way::kExtend, 7, kWaits + 1, 300);
    CHECK(waiting.sealed_pages() == plain.sealed_pages());
    CHECK(error_of(waiting.sequence, text) < 0.5 * error_of(plain.sequence, text));
    const kvq_usage usage = waiting.sequence.usage();
    const kvq_usage without = plain.sequence.usage();
    const auto numbers = static_cast<uint64_t>(10 * text.shape.kv_heads * text.shape.head_dim * text.shape.n_layers);
    CHECK(usage.total_bytes - without.total_bytes > numbers * sizeof(float));
    CHECK(usage.total_bytes - without.total_bytes < numbers * sizeof(float) + 2000);
  }
}

TEST_CASE("queries see scaled pages as they are decoded") {
  const Text text(Shape{}, 260, 3);
  for (const std::string& backend : kvq_test::backends()) {
    for (const std::string& policy : policies()) {
      CAPTURE(backend);
      CAPTURE(policy);
      Conversation conversation(backend, policy);
      feed(conversation.cache, conversation.sequence, text, Way::kExtend, 50, 0, 250);
      for (int32_t layer = 0; layer < text.shape.n_layers; ++layer) {
        kvq_test::append(conversation.sequence, layer, 10, text.keys(layer, 250), text.values(layer, 250));
        const std::vector<float> q(text.queries(layer, 250),
                                   text.queries(layer, 250) + 10 * text.shape.query_scalars());
        const std::vector<float> out =
            attend_last(text.shape, conversation.cache, {conversation.sequence.get()}, 10, q, layer);
        const kvq_test::Rotation rotation = kvq_test::Rotation::from(text.shape.options());
        const auto dim = static_cast<size_t>(text.shape.head_dim);
        double worst = 0.0;
        for (int32_t row = 0; row < 10 * text.shape.q_heads; ++row) {
          const int32_t head = row % text.shape.q_heads;
          const Decoded tokens =
              kvq_test::decode(conversation.sequence, layer, head * text.shape.kv_heads / text.shape.q_heads, 0, 260,
                               text.shape.head_dim);
          const int32_t position = 250 + row / text.shape.q_heads;
          std::vector<double> query(q.begin() + row * text.shape.head_dim, q.begin() + (row + 1) * text.shape.head_dim);
          rotation.apply(query, position);
          const std::vector<double> expected =
              kvq_test::attention<float>({.scale = 1.0 / std::sqrt(static_cast<double>(text.shape.head_dim))}, query,
                                         position, tokens.k, tokens.v, tokens.positions);
          for (size_t c = 0; c < dim; ++c) {
            worst = std::max(
                worst, std::abs(double{out[static_cast<size_t>(row) * dim + c]} - expected[c]) / text.size(c + 7));
          }
        }
        CHECK(worst < 0.06);
      }
    }
  }
}

TEST_CASE("tokens that are too alike are waited out, or end in pages without scales") {
  for (const std::string& backend : kvq_test::backends()) {
    CAPTURE(backend);
    for (const int32_t period : {1, 2, 4, 10}) {
      CAPTURE(period);
      Text text(Shape{}, 600, 4);
      text.repeat(period, 200);
      Conversation conversation(backend, kGs2);
      feed(conversation.cache, conversation.sequence, text, Way::kExtend, 50, 0, 200);
      CHECK(conversation.sealed_pages() == 0);
      feed(conversation.cache, conversation.sequence, text, Way::kExtend, 50, 200, 600);
      CHECK(conversation.sealed_pages() > 0);
      CHECK(error_of(conversation.sequence, text) < 0.5);
    }
    Text text(Shape{}, 2100, 5);
    text.repeat(3, 2100);
    Conversation conversation(backend, kGs2);
    feed(conversation.cache, conversation.sequence, text, Way::kExtend, 500, 0, 2000);
    CHECK(conversation.sealed_pages() == 0);
    feed(conversation.cache, conversation.sequence, text, Way::kExtend, 50, 2000, 2100);
    CHECK(conversation.sealed_pages() > 0);
    // Pages as they are without calibration.
    Conversation plain(backend, "gs2");
    feed(plain.cache, plain.sequence, text, Way::kExtend, 50, 0, 2100);
    CHECK(conversation.sequence.save() == plain.sequence.save());
  }
}

TEST_CASE("a prompt of more than 2048 tokens without queries is sealed at once") {
  const Text text(Shape{}, 2200, 12);
  for (const std::string& backend : kvq_test::backends()) {
    CAPTURE(backend);
    Conversation whole(backend, kGs2);
    feed(whole.cache, whole.sequence, text, Way::kAppend, 2200, 0, 2200);
    CHECK(whole.sealed_pages() > 0);
    Conversation chunks(backend, kGs2);
    feed(chunks.cache, chunks.sequence, text, Way::kAppend, 200, 0, 2200);
    CHECK(whole.sequence.save() == chunks.sequence.save());
  }
}

TEST_CASE("a long prompt beside a short one in a batch does not hurry the short one") {
  const Text text(Shape{}, 400, 13);
  const Text other(Shape{}, 2200, 14);
  const int32_t counts[] = {50, 2200};
  for (const std::string& backend : kvq_test::backends()) {
    CAPTURE(backend);
    Conversation alone(backend, kGs2);
    feed(alone.cache, alone.sequence, text, Way::kExtend, 50, 0, 400);
    Conversation together(backend, kGs2);
    Sequence long_one(together.cache);
    feed(together.cache, together.sequence, text, Way::kExtend, 50, 0, 100);
    for (int32_t layer = 0; layer < text.shape.n_layers; ++layer) {
      kvq_sequence* sequences[] = {together.sequence.get(), long_one.get()};
      std::vector<float> k;
      std::vector<float> v;
      const auto add = [&](const Text& from, int32_t begin, int32_t n) {
        k.insert(k.end(), from.keys(layer, begin),
                 from.keys(layer, begin) + static_cast<size_t>(n) * text.shape.token_scalars());
        v.insert(v.end(), from.values(layer, begin),
                 from.values(layer, begin) + static_cast<size_t>(n) * text.shape.token_scalars());
      };
      add(text, 100, counts[0]);
      add(other, 0, counts[1]);
      auto batch = kvq_test::initialised<kvq_append_batch>();
      batch.n_sequences = 2;
      batch.sequences = sequences;
      batch.token_counts = counts;
      batch.k = k.data();
      batch.v = v.data();
      kvq_test::append_sequences(together.cache.get(), layer, batch);
      const std::vector<float> q(text.queries(layer, 100), text.queries(layer, 150));
      attend_last(text.shape, together.cache, {together.sequence.get()}, counts[0], q, layer);
    }
    CHECK(together.sealed_pages() == 0);
    CHECK(long_one.usage().sealed_pages > 0);
    feed(together.cache, together.sequence, text, Way::kExtend, 50, 150, 400);
    CHECK(together.sequence.save() == alone.sequence.save());
  }
}

TEST_CASE("pages that were sealed without scales end the wait: recoded, or loaded in other formats") {
  const Text text(Shape{}, 400, 15);
  const std::string first_in_float16 = "layers:\n  - {range: [0, 0], keys: fp16, values: fp16}\n";
  for (const std::string& backend : kvq_test::backends()) {
    CAPTURE(backend);
    // What a policy without calibration makes of the first layer.
    Conversation plain(backend, "version: 1\nkeys: gs2\nvalues: gs2\n" + first_in_float16);
    const kvq_test::api::Policy gs2 = kvq_test::load_plain_policy(plain.context, "gs2");
    feed(plain.cache, plain.sequence, text, Way::kExtend, 50, 0, 250);
    plain.sequence.recode(gs2);
    feed(plain.cache, plain.sequence, text, Way::kExtend, 50, 250, 400);
    for (const std::string& to : {kGs2, std::string("gs2")}) {
      CAPTURE(to);
      Conversation recoded(backend, policy_of("gs2", "gs2", first_in_float16));
      const kvq_test::api::Policy policy = kvq_test::load_plain_policy(recoded.context, to);
      feed(recoded.cache, recoded.sequence, text, Way::kExtend, 50, 0, 100);
      feed(recoded.cache, recoded.sequence, text, Way::kExtend, 50, 100, 250);
      recoded.sequence.recode(policy);
      feed(recoded.cache, recoded.sequence, text, Way::kExtend, 50, 250, 400);
      for (int32_t head = 0; head < text.shape.kv_heads; ++head) {
        const Decoded found = kvq_test::decode(recoded.sequence, 0, head, 0, text.n, text.shape.head_dim);
        const Decoded wanted = kvq_test::decode(plain.sequence, 0, head, 0, text.n, text.shape.head_dim);
        CHECK(found.k == wanted.k);
        CHECK(found.v == wanted.v);
      }
    }
    Conversation as_given(backend, "fp16");
    feed(as_given.cache, as_given.sequence, text, Way::kExtend, 50, 0, 250);
    Conversation loading(backend, kGs2);
    auto options = kvq_test::initialised<kvq_load_options>();
    options.recode = 1;
    Sequence loaded = std::move(loading.cache.load(as_given.sequence.save(), options).front());
    feed(loading.cache, loaded, text, Way::kExtend, 50, 250, 400);
    as_given.sequence.recode(kvq_test::api::Policy::load(as_given.context, "gs2"));
    feed(as_given.cache, as_given.sequence, text, Way::kExtend, 50, 250, 400);
    CHECK(loaded.save() == as_given.sequence.save());
  }
}

TEST_CASE("an eviction that fails ends no wait, nor does one that leaves all tokens") {
  const Text text(Shape{}, 400, 16);
  const auto policy = [](const char* budget) {
    return policy_of("gs2", "gs2", std::string("eviction: {method: adasnap, budget: ") + budget + ", window: 16}\n");
  };
  for (const std::string& backend : kvq_test::backends()) {
    CAPTURE(backend);
    Conversation unseen(backend, policy("64"));
    feed(unseen.cache, unseen.sequence, text, Way::kAppend, 100, 0, 300);
    const Snapshot before = unseen.sequence.save();
    CHECK_THROWS_AS(unseen.sequence.compress(), kvq_test::api::Error);
    CHECK(unseen.sequence.save() == before);
    Conversation roomy(backend, policy("256"));
    feed(roomy.cache, roomy.sequence, text, Way::kAttend, 50, 0, 100);
    roomy.sequence.compress();
    feed(roomy.cache, roomy.sequence, text, Way::kAttend, 50, 100, 400);
    Conversation never(backend, policy("256"));
    feed(never.cache, never.sequence, text, Way::kAttend, 50, 0, 400);
    CHECK(roomy.sequence.save() == never.sequence.save());
  }
}

TEST_CASE("forks share scales, or find their own") {
  const Text text(Shape{}, 400, 6);
  const Text other(Shape{}, 400, 7);
  for (const std::string& backend : kvq_test::backends()) {
    CAPTURE(backend);
    Conversation parent(backend, kGs2);
    feed(parent.cache, parent.sequence, text, Way::kExtend, 50, 0, 100);
    Sequence early = parent.sequence.fork();
    feed(parent.cache, parent.sequence, text, Way::kExtend, 50, 100, 200);
    Sequence late = parent.sequence.fork();
    feed(parent.cache, parent.sequence, text, Way::kExtend, 50, 200, 400);
    const Snapshot before = parent.sequence.save();
    feed(parent.cache, early, other, Way::kExtend, 50, 100, 400);
    feed(parent.cache, late, text, Way::kExtend, 50, 200, 400);
    CHECK(parent.sequence.save() == before);
    CHECK(late.save() == before);
    Conversation alone(backend, kGs2);
    feed(alone.cache, alone.sequence, text, Way::kExtend, 50, 0, 100);
    feed(alone.cache, alone.sequence, other, Way::kExtend, 50, 100, 400);
    CHECK(early.save() == alone.sequence.save());
    // A parent that could find its scales shares pages after it has.
    for (const bool settled : {false, true}) {
      CAPTURE(settled);
      Conversation prompt(backend, kGs2);
      feed(prompt.cache, prompt.sequence, text, Way::kAttend, 200, 0, 200);
      CHECK(prompt.sealed_pages() == 0);
      if (settled) prompt.sequence.reserve(0);
      CHECK((prompt.sealed_pages() > 0) == settled);
      Sequence child = prompt.sequence.fork();
      feed(prompt.cache, prompt.sequence, text, Way::kExtend, 50, 200, 400);
      feed(prompt.cache, child, text, Way::kExtend, 50, 200, 400);
      CHECK(prompt.sequence.save() == before);
      CHECK(child.save() == before);
      CHECK((child.usage().shared_pages > 0) == settled);
    }
  }
}

TEST_CASE("snapshots keep scales, in caches of every policy but one with scales of its own") {
  const Text text(Shape{}, 400, 8);
  for (const std::string& backend : kvq_test::backends()) {
    for (const std::string& policy : policies()) {
      CAPTURE(backend);
      CAPTURE(policy);
      Conversation conversation(backend, policy);
      feed(conversation.cache, conversation.sequence, text, Way::kExtend, 50, 0, 250);
      const Snapshot saved = conversation.sequence.save();
      Sequence loaded = Sequence::load(conversation.cache, saved);
      CHECK(loaded.save() == saved);
      feed(conversation.cache, conversation.sequence, text, Way::kExtend, 50, 250, 400);
      feed(conversation.cache, loaded, text, Way::kExtend, 50, 250, 400);
      CHECK(loaded.save() == conversation.sequence.save());
      // Pages of a plain policy with the same formats continue without.
      const std::string plain = std::string(policy).erase(policy.find("calibrate: first\n"), 17);
      const Cache other = make_cache(conversation.context, text.shape.options(), plain);
      Sequence elsewhere = Sequence::load(other, saved);
      feed(other, elsewhere, text, Way::kExtend, 50, 250, 400);
      CHECK(elsewhere.save() == conversation.sequence.save());
    }
    Conversation conversation(backend, kGs2);
    feed(conversation.cache, conversation.sequence, text, Way::kExtend, 50, 0, 250);
    kvq_cache_options options = text.shape.options();
    const kvq_test::Centres centres = kvq_test::Centres::load(
        conversation.context.get(), kvq_test::test_centres(options, {.keys = 0, .values = 0, .scales = true}));
    options.centres = centres.get();
    const Cache scaled = make_cache(conversation.context, options, std::string("gs2"));
    CHECK_THROWS_WITH_AS(Sequence::load(scaled, conversation.sequence.save()), doctest::Contains("scales of channels"),
                         kvq_test::api::Error);
    // A policy that calibrates uses the scales of the cache.
    const Cache both = make_cache(conversation.context, options, kGs2);
    Sequence of_model(both);
    feed(both, of_model, text, Way::kExtend, 50, 0, 100);
    CHECK(of_model.usage().sealed_pages > 0);
  }
}

TEST_CASE("truncation keeps scales while any token stays") {
  const Text text(Shape{}, 300, 9);
  const Text other(Shape{}, 300, 10);
  for (const std::string& backend : kvq_test::backends()) {
    CAPTURE(backend);
    Conversation conversation(backend, kGs2);
    feed(conversation.cache, conversation.sequence, text, Way::kExtend, 50, 0, 200);
    const Snapshot before = conversation.sequence.save();
    feed(conversation.cache, conversation.sequence, text, Way::kExtend, 50, 200, 300);
    conversation.sequence.truncate(192);
    feed(conversation.cache, conversation.sequence, text, Way::kExtend, 8, 192, 200);
    CHECK(conversation.sequence.save() == before);
    conversation.sequence.truncate(0);
    feed(conversation.cache, conversation.sequence, other, Way::kExtend, 50, 0, 300);
    Conversation fresh(backend, kGs2);
    feed(fresh.cache, fresh.sequence, other, Way::kExtend, 50, 0, 300);
    CHECK(conversation.sequence.save() == fresh.sequence.save());
    // While waiting.
    Conversation short_one(backend, kGs2);
    feed(short_one.cache, short_one.sequence, text, Way::kExtend, 50, 0, 100);
    short_one.sequence.truncate(0);
    feed(short_one.cache, short_one.sequence, other, Way::kExtend, 50, 0, 300);
    CHECK(short_one.sequence.save() == fresh.sequence.save());
    // Queries of what stays count on.
    Conversation cut(backend, kGs2);
    feed(cut.cache, cut.sequence, text, Way::kAttend, 50, 0, 100);
    cut.sequence.truncate(99);
    feed(cut.cache, cut.sequence, text, Way::kAppend, 1, 99, 300);
    Conversation whole(backend, kGs2);
    feed(whole.cache, whole.sequence, text, Way::kAttend, 50, 0, 300);
    CHECK(error_of(cut.sequence, text) < 1.05 * error_of(whole.sequence, text));
  }
}

TEST_CASE("eviction after a prompt seals pages") {
  const Text text(Shape{}, 400, 11);
  for (const std::string& backend : kvq_test::backends()) {
    CAPTURE(backend);
    Conversation evicting(backend, policy_of("gs2", "gs2", "eviction: {method: adasnap, budget: 64, window: 16}\n"));
    feed(evicting.cache, evicting.sequence, text, Way::kAttend, 300, 0, 300);
    CHECK(evicting.sealed_pages() == 0);
    evicting.sequence.compress();
    CHECK(evicting.sealed_pages() > 0);
    CHECK(evicting.sequence.slots(0, 0) < 300);
    feed(evicting.cache, evicting.sequence, text, Way::kExtend, 50, 300, 400);
  }
}

TEST_CASE("pages can be preallocated before there are scales, and take as much as without") {
  const Text text(Shape{}, 400, 11);
  for (const std::string& backend : kvq_test::backends()) {
    for (const std::string& policy : policies()) {
      CAPTURE(backend);
      CAPTURE(policy);
      Conversation plain(backend, policy);
      feed(plain.cache, plain.sequence, text, Way::kAttend, 30, 0, 399);
      feed(plain.cache, plain.sequence, text, Way::kAttend, 1, 399, 400);
      const std::pair<int32_t, int32_t> parts[] = {{0, 30}, {0, 300}, {50, 66}, {50, 120}, {128, 30}};
      for (const auto& part : parts) {
        const int32_t before = part.first;
        const int32_t chunk = part.second;
        for (const Way way : {Way::kExtend, Way::kAttend}) {
          CAPTURE(before);
          CAPTURE(chunk);
          CAPTURE(way == Way::kExtend);
          Conversation conversation(backend, policy);
          feed(conversation.cache, conversation.sequence, text, way, 50, 0, before);
          conversation.sequence.reserve(400 - before);
          for (int32_t layer = 0; layer < text.shape.n_layers; ++layer) {
            CHECK(conversation.sequence.room(layer) >= 400 - before);
          }
          const uint64_t bytes = conversation.sequence.usage().total_bytes;
          feed(conversation.cache, conversation.sequence, text, way, chunk, before, 399);
          feed(conversation.cache, conversation.sequence, text, way, 1, 399, 400);
          CHECK(conversation.sequence.save() == plain.sequence.save());
          // A device that keeps tables of pages reads the same ones.
          for (int32_t layer = 0; layer < text.shape.n_layers; ++layer) {
            const std::vector<float> q(text.queries(layer, 399), text.queries(layer, 399) + text.shape.query_scalars());
            const auto out = attend_last(text.shape, conversation.cache, {conversation.sequence.get()}, 1, q, layer);
            const auto expected = attend_last(text.shape, plain.cache, {plain.sequence.get()}, 1, q, layer);
            const auto differs = [](float a, float b) { return !(std::abs(a - b) <= 1e-3F * (1.0F + std::abs(b))); };
            int32_t different = 0;
            for (size_t i = 0; i < out.size(); ++i) different += differs(out[i], expected[i]) ? 1 : 0;
            CHECK(different == 0);
          }
          CHECK(conversation.sequence.usage().total_bytes < bytes + 12000);
          // The reserve goes on to keep the originals of what steps seal.
          const Snapshot before_step = conversation.sequence.save();
          for (const int32_t n : {20, 90}) {
            CAPTURE(n);
            begin_step(conversation.cache, conversation.sequence, n);
            for (int32_t layer = 0; layer < text.shape.n_layers; ++layer) {
              for (int32_t i = 0; i < n; ++i) {
                kvq_test::append(conversation.sequence, layer, 1, text.keys(layer, i), text.values(layer, i));
              }
            }
            end_step(conversation.cache, conversation.sequence, 0);
            CHECK(conversation.sequence.save() == before_step);
          }
        }
      }
    }
  }
}

TEST_CASE("a step after a search takes back what it sealed") {
  const Text text(Shape{}, 300, 22);
  for (const std::string& backend : kvq_test::backends()) {
    for (const std::string& policy : policies()) {
      for (const int32_t prompt : {127, 128, 140}) {
        for (const int32_t chunk : {30, 140}) {
          for (const Way way : {Way::kExtend, Way::kAttend}) {
            CAPTURE(backend);
            CAPTURE(policy);
            CAPTURE(prompt);
            CAPTURE(chunk);
            CAPTURE(way == Way::kExtend);
            Conversation stepped(backend, policy);
            stepped.sequence.reserve(300);
            feed(stepped.cache, stepped.sequence, text, way, chunk, 0, prompt);
            begin_step(stepped.cache, stepped.sequence, 1);  // which may find scales
            end_step(stepped.cache, stepped.sequence, 0);
            const Snapshot before = stepped.sequence.save();
            for (const int32_t n : {20, 32}) {
              CAPTURE(n);
              begin_step(stepped.cache, stepped.sequence, 32);
              feed(stepped.cache, stepped.sequence, text, Way::kAppend, 1, prompt, prompt + n);
              end_step(stepped.cache, stepped.sequence, 0);
              CHECK(stepped.sequence.save() == before);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("steps keep queries that count, and find scales between them") {
  const Text text(Shape{}, 400, 17);
  const Text draft(Shape{}, 400, 18);
  for (const std::string& backend : kvq_test::backends()) {
    for (const std::string& policy : policies()) {
      for (const Way way : {Way::kExtend, Way::kAttend}) {
        CAPTURE(backend);
        CAPTURE(policy);
        CAPTURE(way == Way::kExtend);
        Conversation plain(backend, policy);
        feed(plain.cache, plain.sequence, text, way, 40, 0, 399);
        feed(plain.cache, plain.sequence, text, way, 1, 399, 400);
        for (const int32_t chunk : {9, 100, 300}) {
          CAPTURE(chunk);
          Conversation stepped(backend, policy);
          for (int32_t at = 0; at < 400; at += chunk) {
            const int32_t n = std::min(chunk, 400 - at);
            // What is taken back leaves nothing behind.
            begin_step(stepped.cache, stepped.sequence, n);
            feed(stepped.cache, stepped.sequence, draft, way, n, at, at + n);
            end_step(stepped.cache, stepped.sequence, 0);
            begin_step(stepped.cache, stepped.sequence, n);
            feed(stepped.cache, stepped.sequence, text, way, n, at, at + n);
            CHECK_THROWS_WITH_AS(stepped.sequence.reserve(10), doctest::Contains("step"), kvq_test::api::Error);
            end_step(stepped.cache, stepped.sequence, n);
          }
          CHECK(stepped.sequence.save() == plain.sequence.save());
        }
      }
      // Draft tokens of which some are kept: their queries change the scales a little.
      Conversation drafted(backend, policy);
      for (int32_t at = 0; at < 400; at += 2) {
        begin_step(drafted.cache, drafted.sequence, 4);
        for (const auto& [from, begin] : {std::pair(&text, at), std::pair(&draft, at + 2)}) {
          feed(drafted.cache, drafted.sequence, *from, Way::kExtend, 2, begin, std::min(begin + 2, 400));
        }
        end_step(drafted.cache, drafted.sequence, 2);
      }
      Conversation plain(backend, policy);
      feed(plain.cache, plain.sequence, text, Way::kExtend, 40, 0, 400);
      CHECK(drafted.sealed_pages() == plain.sealed_pages());
      CHECK(error_of(drafted.sequence, text) < 1.1 * error_of(plain.sequence, text));
    }
  }
}

TEST_CASE("a policy that is given while tokens wait, or to an empty sequence, finds scales for its formats") {
  const Text text(Shape{}, 400, 19);
  for (const std::string& backend : kvq_test::backends()) {
    CAPTURE(backend);
    for (const std::string& policy : policies()) {
      CAPTURE(policy);
      Conversation plain(backend, policy);
      feed(plain.cache, plain.sequence, text, Way::kAttend, 50, 0, 399);
      feed(plain.cache, plain.sequence, text, Way::kAttend, 1, 399, 400);
      for (const int32_t before : {0, 50, 128, 200}) {
        CAPTURE(before);
        // gs3 pages are sealed in nothing else yet.
        Conversation recoded(backend, policy_of("gs3", "gs3"));
        const kvq_test::api::Policy to = kvq_test::api::Policy::load(recoded.context, policy);
        feed(recoded.cache, recoded.sequence, text, Way::kAttend, before, 0, before);
        CHECK(recoded.sealed_pages() == 0);
        auto needs = recoded.sequence.predict_recode(to);
        recoded.sequence.recode(to);
        CHECK(needs.bytes_after == recoded.sequence.usage().total_bytes);
        feed(recoded.cache, recoded.sequence, text, Way::kAttend, 50, before, 399);
        feed(recoded.cache, recoded.sequence, text, Way::kAttend, 1, 399, 400);
        // A layer in FP16 has scales where it waited with others.
        if (policy.find("fp16, values: fp16") == std::string::npos) {
          CHECK(recoded.sequence.save() == plain.sequence.save());
        }
      }
      Conversation given(backend, "fp16");
      given.sequence.recode(kvq_test::api::Policy::load(given.context, policy));
      feed(given.cache, given.sequence, text, Way::kAttend, 50, 0, 399);
      feed(given.cache, given.sequence, text, Way::kAttend, 1, 399, 400);
      CHECK(given.sequence.save() == plain.sequence.save());
    }
    // A step's pages are in nobody's way; tokens that are too alike wait on.
    for (const int32_t period : {400, 2}) {
      CAPTURE(period);
      Text other = text;
      other.repeat(period, 400);
      Conversation stepped(backend, policy_of("gs1", "gs1"));
      Conversation direct(backend, kGs2);
      begin_step(stepped.cache, stepped.sequence, 200);
      feed(stepped.cache, stepped.sequence, other, Way::kAttend, 200, 0, 200);
      end_step(stepped.cache, stepped.sequence, 200);
      const kvq_test::api::Policy gs2 = kvq_test::api::Policy::load(stepped.context, "gs2");
      const uint64_t predicted = stepped.sequence.predict_recode(gs2).bytes_after;
      stepped.sequence.recode(gs2);
      // The step's own pages go, too.
      CHECK(stepped.sequence.usage().total_bytes <= predicted);
      CHECK((stepped.sealed_pages() > 0) == (period > 16));
      feed(stepped.cache, stepped.sequence, other, Way::kAttend, 1, 200, 201);
      feed(direct.cache, direct.sequence, other, Way::kAttend, 200, 0, 200);
      feed(direct.cache, direct.sequence, other, Way::kAttend, 1, 200, 201);
      CHECK(stepped.sequence.save() == direct.sequence.save());
    }
    // A sequence in FP16 gets no scales for the tokens that it has, but is like any other once it is empty.
    Conversation float16(backend, "fp16");
    feed(float16.cache, float16.sequence, text, Way::kAttend, 50, 0, 200);
    const kvq_test::api::Policy gs2 = kvq_test::api::Policy::load(float16.context, "gs2");
    const uint64_t predicted = float16.sequence.predict_recode(gs2).bytes_after;
    float16.sequence.recode(gs2);
    CHECK(float16.sequence.usage().total_bytes == predicted);
    CHECK(float16.sealed_pages() > 0);
    float16.sequence.truncate(0);
    feed(float16.cache, float16.sequence, text, Way::kExtend, 50, 0, 400);
    Conversation fresh(backend, kGs2);
    feed(fresh.cache, fresh.sequence, text, Way::kExtend, 50, 0, 400);
    CHECK(float16.sequence.save() == fresh.sequence.save());
    // Without calibration, what waits is sealed as it is.
    Conversation waiting(backend, kGs2);
    feed(waiting.cache, waiting.sequence, text, Way::kExtend, 50, 0, 100);
    waiting.sequence.recode(kvq_test::load_plain_policy(waiting.context, "int4"));
    CHECK(waiting.sealed_pages() > 0);
    Conversation plain(backend, "int4");
    feed(plain.cache, plain.sequence, text, Way::kExtend, 50, 0, 100);
    CHECK(waiting.sequence.save() == plain.sequence.save());
  }
}

TEST_CASE("channels and queries of every kind give finite scales") {
  struct Kind {
    std::string name;
    float factor;  // of the channel
    float offset;
    float query;
  };
  const Kind kinds[] = {{"zero", 0.0F, 0.0F, 1.0F},    {"constant", 0.0F, 5.0F, 1.0F},
                        {"huge", 500.0F, 0.0F, 1.0F},  {"tiny", 1e-7F, 0.0F, 1.0F},
                        {"unread", 1.0F, 0.0F, 0.0F},  {"read hugely", 1.0F, 0.0F, 1e30F},
                        {"as it is", 1.0F, 0.0F, 1.0F}};
  const float strange[] = {0.0F, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()};
  const Shape shape{};
  for (const std::string& backend : kvq_test::backends()) {
    for (const Kind& kind : kinds) {
      for (const bool all : {false, true}) {
        CAPTURE(backend);
        CAPTURE(kind.name);
        CAPTURE(all);
        const bool differ = !all || kind.factor > 0.0F;  // tokens; else the sequence waits on
        std::vector<double> errors;
        for (const float query : strange) {
          CAPTURE(query);
          Text text(shape, 300, 20);
          const auto change = [&](std::vector<float>& tensor, float factor, float offset) {
            for (size_t i = 0; i < tensor.size(); ++i) {
              const size_t channel = i % static_cast<size_t>(shape.head_dim);
              if (all || channel % 32 == 7) tensor[i] = tensor[i] * factor + offset;
            }
          };
          for (size_t layer = 0; layer < text.k.size(); ++layer) {
            change(text.k[layer], kind.factor, kind.offset);
            change(text.v[layer], kind.factor, kind.offset);
            change(text.q[layer], kind.query, 0.0F);
            // One token's queries.
            std::fill_n(text.q[layer].begin() + 40 * static_cast<ptrdiff_t>(shape.query_scalars()),
                        shape.query_scalars(), query);
          }
          Conversation found(backend, kGs2);
          feed(found.cache, found.sequence, text, Way::kExtend, 50, 0, 300);
          CHECK((found.sealed_pages() > 0) == differ);
          for (int32_t layer = 0; layer < shape.n_layers; ++layer) {
            for (int32_t head = 0; head < shape.kv_heads; ++head) {
              const Decoded tokens = kvq_test::decode(found.sequence, layer, head, 0, 300, shape.head_dim);
              const auto is_finite = [](float number) { return std::isfinite(number); };
              CHECK(std::ranges::all_of(tokens.k, is_finite));
              CHECK(std::ranges::all_of(tokens.v, is_finite));
            }
          }
          errors.push_back(error_of(found.sequence, text));
        }
        // What is not finite does not count.
        if (!differ) continue;
        CHECK(errors[1] == errors[0]);
        CHECK(errors[2] == errors[0]);
      }
    }
  }
}

TEST_CASE("equal tokens are told by their values where keys arrive rotated") {
  Text text(Shape{}, 300, 21);
  text.repeat(2, 200);
  const kvq_test::Rotation rotation = kvq_test::Rotation::from(text.shape.options());
  for (std::vector<float>& of_layer : text.k) {
    for (size_t row = 0; row * static_cast<size_t>(text.shape.head_dim) < of_layer.size(); ++row) {
      float* key = of_layer.data() + row * static_cast<size_t>(text.shape.head_dim);
      std::vector<double> turned(key, key + text.shape.head_dim);
      rotation.apply(turned, static_cast<int32_t>(row) / text.shape.kv_heads);
      std::ranges::transform(turned, key, [](double number) { return static_cast<float>(number); });
    }
  }
  kvq_cache_options options = text.shape.options();
  options.rope = KVQ_ROPE_NONE;
  for (const std::string& backend : kvq_test::backends()) {
    CAPTURE(backend);
    const Context context = kvq_test::make_context(backend.c_str());
    const Cache cache = make_cache(context, options, kGs2);
    Sequence sequence(cache);
    feed(cache, sequence, text, Way::kExtend, 50, 0, 200);
    CHECK(sequence.usage().sealed_pages == 0);
    feed(cache, sequence, text, Way::kExtend, 50, 200, 300);
    CHECK(sequence.usage().sealed_pages > 0);
  }
}

TEST_CASE("gain-shape pages calibrate themselves, and others do when asked") {
  const Context context = kvq_test::make_context();
  const auto calibrates = [&](const std::string& text) {
    return kvq_test::api::Policy::load(context, text).describe().calibrates == 1;
  };
  for (const char* text : {"gs4", "gs2", "gt2", "int4/gs2", "gs2+adasnap:64"}) CHECK(calibrates(text));
  for (const char* text : {"fp16", "int4", "int2+hadamard", "gs2+centres", "commvq/gs2", "gs2+nocentre/commvq"}) {
    CHECK_FALSE(calibrates(text));
  }
  CHECK(calibrates("{version: 1, keys: int4, values: int4, calibrate: first}"));
  CHECK_FALSE(calibrates("{version: 1, keys: gs2, values: gs2, calibrate: none}"));
  CHECK_FALSE(calibrates("{version: 1, router: {experts: [fp16, gs4, gs2]}}"));
  CHECK(calibrates("{version: 1, keys: int4, layers: [{range: [0, 0], keys: gs4}]}"));
  const kvq_test::api::Policy layers =
      kvq_test::api::Policy::load(context, "int4").with_layer(context, 1, 2, "gs4", {});
  CHECK(layers.describe().calibrates == 1);
}

}  // namespace conformance::calibration_test
