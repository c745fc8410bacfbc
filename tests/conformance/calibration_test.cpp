// Sequences that find scales of channels by their own first tokens: when, by which, and what they are.
#include "calibration.h"

namespace conformance::calibration_test {

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
