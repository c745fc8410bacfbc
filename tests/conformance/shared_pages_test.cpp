// Layers that read the pages of another one: like layers with the same pages of their own, without their memory.
#include "support/failure.h"
#include "support/handles.h"
#include "support/random.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace conformance::shared_pages_test {
namespace {

using kvq_test::Cache;
using kvq_test::Context;
using kvq_test::Sequence;

constexpr int32_t kTokens = 300;

// A model's layers. Layer 0 is as the options say.
struct Model {
  std::vector<kvq_layer_shape> shapes;
  int32_t n_layers;

  kvq_cache_options options() const {
    kvq_cache_options options = kvq_test::cache_options(4, 2, 64, n_layers);
    options.shapes = shapes.data();
    options.n_shapes = static_cast<int32_t>(shapes.size());
    return options;
  }
};

kvq_layer_shape shape(int32_t layer) {
  auto shape = kvq_test::initialised<kvq_layer_shape>();
  shape.first_layer = layer;
  return shape;
}

// Layers 1 and 3 of models, at these numbers.
kvq_layer_shape large_heads(int32_t layer) {
  kvq_layer_shape made = shape(layer);
  made.q_heads = 6;
  made.kv_heads = 3;
  made.key_dim = 128;
  made.value_dim = 96;
  made.rotary_dim = 64;
  made.rope_base = 1e6F;
  return made;
}
kvq_layer_shape latents(int32_t layer) {
  kvq_layer_shape made = shape(layer);
  made.q_heads = 8;
  made.kv_heads = 1;
  made.key_dim = 96;
  made.value_dim = 64;
  made.values_are_key_prefix = 1;
  return made;
}

constexpr int32_t kLayers = 7;
constexpr int32_t kPagesOf[kLayers] = {0, 1, 0, 3, 1, 1, 3};
constexpr int32_t kOwners[] = {0, 1, 3};

// What the queries of layer 2 and of layers 4 and 5 have of their own.
void set_queries_of_2(kvq_layer_shape& shape) {
  shape.q_heads = 8;
  shape.scale = 0.2F;
}
void set_queries_of_4(kvq_layer_shape& shape) {
  shape.q_heads = 12;
  shape.logit_softcap = 20.0F;
}

// Layer 2 reads the pages of layer 0, layers 4 and 5 those of 1, and layer 6 those of 3.
Model sharing() {
  Model model{{latents(3), shape(4), shape(2), large_heads(1), shape(6)}, kLayers};
  model.shapes[1].n_layers = 2;
  model.shapes[1].pages_of_layer = 1;
  set_queries_of_4(model.shapes[1]);
  model.shapes[2].pages_of_layer = 0;
  set_queries_of_2(model.shapes[2]);
  model.shapes[4].pages_of_layer = 3;
  model.shapes[4].q_heads = 8;
  return model;
}

// The same with pages of their own.
Model apart() {
  Model model{{large_heads(1), shape(2), latents(3), large_heads(4), latents(6)}, kLayers};
  set_queries_of_2(model.shapes[1]);
  model.shapes[3].n_layers = 2;
  set_queries_of_4(model.shapes[3]);
  return model;
}

// The layers with pages alone.
Model owners() { return {{large_heads(1), latents(2)}, 3}; }

std::string policy_text(const std::string& format, bool calibrated, const std::string& more = "") {
  return "version: 1\nkeys: " + format + "\nvalues: " + format + "\ncalibrate: " + (calibrated ? "first" : "none") +
         "\n" + more;
}

// Tokens [begin, end) of the layer with number `tokens_of` in a sharing model.
void append(const Cache& cache, Sequence& sequence, int32_t layer, int32_t tokens_of, int32_t begin, int32_t end) {
  const kvq_layer_info info = cache.describe_layer(layer);
  const auto row_k = static_cast<size_t>(info.kv_heads * info.key_dim);
  const auto row_v = static_cast<size_t>(info.kv_heads * info.value_dim);
  const auto seed = static_cast<uint64_t>(tokens_of);
  const std::vector<float> k = kvq_test::normal_tensor(kTokens * row_k, 10 + seed);
  const std::vector<float> v = kvq_test::normal_tensor(kTokens * row_v, 50 + seed);
  const auto first = static_cast<size_t>(begin);
  kvq_test::append(sequence, layer, end - begin, k.data() + first * row_k,
                   info.values_are_key_prefix != 0 ? nullptr : v.data() + first * row_v);
}

// The same for all layers that take tokens.
void append_shared(const Cache& cache, Sequence& sequence, int32_t begin, int32_t end) {
  for (const int32_t layer : kOwners) append(cache, sequence, layer, layer, begin, end);
}
void append_owners(const Cache& cache, Sequence& sequence, int32_t begin, int32_t end) {
  for (int32_t i = 0; i < 3; ++i) append(cache, sequence, i, kOwners[i], begin, end);
}

struct Attended {
  std::vector<float> out;
  std::vector<float> lse;
  bool operator==(const Attended&) const = default;
};

// Of the newest queries, within a window if there is one.
Attended attend(const Cache& cache, const Sequence& sequence, int32_t layer, int32_t queries, int32_t window = 0) {
  const kvq_layer_info info = cache.describe_layer(layer);
  const auto rows = static_cast<size_t>(queries * info.q_heads);
  const std::vector<float> q = kvq_test::normal_tensor(rows * static_cast<size_t>(info.key_dim), 90);
  Attended attended{std::vector<float>(rows * static_cast<size_t>(info.value_dim)), std::vector<float>(rows)};
  const kvq_sequence* pointer = sequence.get();
  auto batch = kvq_test::initialised<kvq_attend_batch>();
  batch.n_sequences = 1;
  batch.sequences = &pointer;
  batch.query_counts = &queries;
  batch.q = q.data();
  batch.output = attended.out.data();
  batch.lse = attended.lse.data();
  batch.sliding_window = window;
  kvq_test::attend(cache, layer, batch);
  return attended;
}

}  // namespace

TEST_CASE("a layer that reads another one's pages attends as if it had the same pages of its own") {
  for (const std::string& backend : kvq_test::backends()) {
    const Context context = kvq_test::make_context(backend.c_str());
    for (const std::string format : {"fp16", "int8", "int4+hadamard", "int2", "gs4", "gt2"}) {
      for (const bool calibrated : {false, true}) {
        CAPTURE(backend);
        CAPTURE(format);
        CAPTURE(calibrated);
        // Formats of layers 1 and 3 count by the model's numbers; those of a layer without pages count for nothing.
        const std::string of_3 = ", {range: [3, 3], keys: int8, values: int8}";
        const std::string of_6 = ", {range: [6, 6], keys: int8, values: int8}";
        const Cache cache = kvq_test::make_cache(
            context, sharing().options(),
            policy_text(format, calibrated, "layers: [{range: [4, 5], keys: int3, values: int3}" + of_3 + "]\n"));
        const Cache expected = kvq_test::make_cache(
            context, apart().options(), policy_text(format, calibrated, "layers: [" + of_3.substr(2) + of_6 + "]\n"));
        Sequence sequence(cache);
        Sequence twin(expected);
        int32_t end = 0;
        for (const int32_t chunk : {1, 31, 40, kTokens - 72}) {
          append_shared(cache, sequence, end, end + chunk);
          for (int32_t layer = 0; layer < kLayers; ++layer) {
            append(expected, twin, layer, kPagesOf[layer], end, end + chunk);
          }
          end += chunk;
        }
        for (Sequence* each : {&sequence, &twin}) each->reserve(0);  // finds scales
        for (int32_t layer = 0; layer < kLayers; ++layer) {
          CAPTURE(layer);
          CHECK(cache.describe_layer(layer).pages_of_layer == kPagesOf[layer]);
          CHECK(std::string(cache.describe_layer(layer).formats) == expected.describe_layer(layer).formats);
          CHECK(cache.describe_layer(layer).scale == expected.describe_layer(layer).scale);
          CHECK(sequence.length(layer) == kTokens);
          for (const int32_t queries : {1, 3, 70}) {
            CHECK((attend(cache, sequence, layer, queries) == attend(expected, twin, layer, queries)));
            CHECK((attend(cache, sequence, layer, queries, 50) == attend(expected, twin, layer, queries, 50)));
          }
        }
      }
    }
  }
}

TEST_CASE("layers without pages change nothing of what a sequence holds") {
  for (const char* device : kvq_test::devices()) {
    const Context context = kvq_test::make_context(device);
    for (const std::string format : {"fp16", "int4", "gs4"}) {
      for (const bool calibrated : {false, true}) {
        CAPTURE(format);
        CAPTURE(calibrated);
        const std::string policy = policy_text(format, calibrated);
        const Cache cache = kvq_test::make_cache(context, sharing().options(), policy);
        const Cache plain = kvq_test::make_cache(context, owners().options(), policy);
        CHECK(cache.describe().n_layers == kLayers);
        Sequence sequence(cache);
        Sequence expected(plain);
        append_shared(cache, sequence, 0, kTokens);
        append_owners(plain, expected, 0, kTokens);
        for (Sequence* each : {&sequence, &expected}) each->reserve(0);
        CHECK(sequence.usage().total_bytes == expected.usage().total_bytes);
        CHECK(sequence.usage().scalars == expected.usage().scalars);
        CHECK((sequence.save() == expected.save()));
        CHECK((Sequence::load(cache, sequence.save()).save() == sequence.save()));
        CHECK(attend(cache, Sequence::load(cache, sequence.save()), 4, 5) == attend(cache, sequence, 4, 5));

        Sequence fork = sequence.fork();
        fork.truncate(kTokens - 10);
        CHECK(fork.length(4) == kTokens - 10);
        append_shared(cache, fork, kTokens - 10, kTokens);
        fork.reserve(0);
        CHECK((fork.save() == sequence.save()));
        CHECK(attend(cache, fork, 4, 5) == attend(cache, sequence, 4, 5));

        const kvq_usage predicted = cache.predict_usage(1, kTokens, 0);
        CHECK(predicted.sealed_bytes == plain.predict_usage(1, kTokens, 0).sealed_bytes);
        CHECK(predicted.fp16_bytes == plain.predict_usage(1, kTokens, 0).fp16_bytes);
        CHECK(predicted.metadata_bytes == plain.predict_usage(1, kTokens, 0).metadata_bytes);
        Sequence reserved(cache);
        reserved.reserve(kTokens);
        CHECK(reserved.room(5) == reserved.room(1));
        append_shared(cache, reserved, 0, kTokens);
        reserved.reserve(0);
        CHECK((reserved.save() == sequence.save()));

        const kvq_test::Policy other = kvq_test::load_plain_policy(context, policy_text("int2", false));
        for (Sequence* each : {&sequence, &expected}) each->recode(other);
        CHECK((sequence.save() == expected.save()));
        CHECK(std::string(sequence.describe_layer(5).formats) == "int2");
      }
    }
  }
}

TEST_CASE("a layer without pages shows the slots and tokens of the layer that it reads") {
  const Context context = kvq_test::make_context();
  const Cache cache = kvq_test::make_cache(context, sharing().options(), "int4");
  Sequence sequence(cache);
  append_shared(cache, sequence, 0, kTokens);
  const kvq_layer_info info = cache.describe_layer(4);
  CHECK(info.q_heads == 12);
  CHECK(info.kv_heads == 3);
  CHECK(info.key_dim == 128);
  CHECK(info.value_dim == 96);
  CHECK(info.rotary_dim == 64);
  CHECK(info.logit_softcap == 20.0F);
  for (int32_t head = 0; head < 3; ++head) {
    CHECK(sequence.slots(4, head) == kTokens);
    std::vector<float> k(kTokens * 128);
    std::vector<float> other(k.size());
    std::vector<float> v(kTokens * 96);
    sequence.decode(1, head, 0, kTokens, k, v, {});
    sequence.decode(5, head, 0, kTokens, other, v, {});
    CHECK(k == other);
  }
}

TEST_CASE("attention of a layer without pages allocates nothing in preallocated room") {
  auto model = Model{{shape(1), shape(2)}, 3};
  model.shapes[0].pages_of_layer = 0;
  model.shapes[0].q_heads = 32;  // more than any layer with pages has
  model.shapes[1].q_heads = 8;
  const Context context = kvq_test::make_context();
  const Cache cache = kvq_test::make_cache(context, model.options(), "gs4");
  Sequence sequence(cache);
  sequence.reserve(kTokens);
  const uint64_t before = cache.usage().total_bytes;
  for (int32_t i = 0; i < kTokens; ++i) {
    for (const int32_t layer : {0, 2}) append(cache, sequence, layer, layer, i, i + 1);
    for (const int32_t layer : {0, 1, 2}) attend(cache, sequence, layer, 1);
  }
  CHECK(cache.usage().total_bytes == before);
  CHECK(cache.predict_usage(1, kTokens, 1).workspace_bytes >= cache.usage().workspace_bytes);
}

TEST_CASE("steps end with the tokens of the layers that have pages") {
  for (const char* device : kvq_test::devices()) {
    const Context context = kvq_test::make_context(device);
    const Cache cache = kvq_test::make_cache(context, sharing().options(), "int4");
    Sequence sequence(cache);
    Sequence expected(cache);
    append_shared(cache, sequence, 0, 90);
    append_shared(cache, expected, 0, 90);
    kvq_sequence* pointer = sequence.get();
    auto batch = kvq_test::initialised<kvq_step_batch>();
    batch.n_sequences = 1;
    batch.sequences = &pointer;
    for (const int32_t kept : {0, 5, 40}) {
      const int32_t begin = expected.length(0);
      const int32_t count = 40;
      batch.token_counts = &count;
      kvq_test::checked(kvq_step_begin, cache, &batch);
      append_shared(cache, sequence, begin, begin + count);
      attend(cache, sequence, 2, count);
      batch.token_counts = &kept;
      kvq_test::checked(kvq_step_commit, cache, &batch);
      if (kept > 0) append_shared(cache, expected, begin, begin + kept);
      CHECK((sequence.save() == expected.save()));
      CHECK(attend(cache, sequence, 6, 3) == attend(cache, expected, 6, 3));
    }
  }
}

TEST_CASE("eviction goes by the queries of the layer with the pages, and layers that read it see what stays") {
  constexpr int32_t kBudget = 100;
  const std::string policy =
      "version: 1\nkeys: int4\nvalues: int4\ncalibrate: none\neviction: {method: adasnap, budget: 100}\n";
  // Layer 1 reads layer 0, layer 3 layer 2.
  Model model{{shape(1), shape(3)}, 4};
  for (kvq_layer_shape& each : model.shapes) {
    each.pages_of_layer = each.first_layer - 1;
    each.q_heads = 8;
  }
  for (const std::string& backend : kvq_test::backends()) {
    CAPTURE(backend);
    const Context context = kvq_test::make_context(backend.c_str());
    const Cache cache = kvq_test::make_cache(context, model.options(), policy);
    const Cache plain = kvq_test::make_cache(context, Model{{}, 2}.options(), policy);
    Sequence sequence(cache);
    Sequence expected(plain);
    for (const int32_t layer : {0, 2}) {
      append(cache, sequence, layer, layer, 0, kTokens);
      append(plain, expected, layer / 2, layer, 0, kTokens);
      attend(cache, sequence, layer, 40);
      attend(plain, expected, layer / 2, 40);
      attend(cache, sequence, layer + 1, 70);  // not observed
    }
    std::vector<int32_t> kept(8);
    auto options = kvq_test::initialised<kvq_compress_options>();
    options.kept = kept.data();
    sequence.compress(options);
    expected.compress();
    CHECK((sequence.save() == expected.save()));
    for (size_t layer = 0; layer < 4; ++layer) {
      CHECK(kept[2 * layer] + kept[2 * layer + 1] == 2 * kBudget);
      for (size_t head = 0; head < 2; ++head) {
        CHECK(kept[2 * layer + head] == expected.slots(static_cast<int32_t>(layer) / 2, static_cast<int32_t>(head)));
      }
    }
    CHECK(sequence.slots(3, 1) == sequence.slots(2, 1));
    attend(cache, sequence, 3, 2);
  }
}

TEST_CASE("a layer without pages takes no tokens") {
  const Context context = kvq_test::make_context();
  const Cache cache = kvq_test::make_cache(context, sharing().options(), "fp16");
  Sequence sequence(cache);
  append_shared(cache, sequence, 0, 40);
  const std::vector<float> numbers(12 * 128, 0.5F);
  std::vector<float> out(12 * 128);
  const std::string refusal =
      "layer is 5, which reads the pages of layer 1: append to that, and call kvq_attend for this";
  CHECK_THROWS_WITH_AS(kvq_test::append(sequence, 5, 1, numbers.data(), numbers.data()), refusal.c_str(),
                       kvq_test::Error);
  kvq_sequence* pointer = sequence.get();
  auto tokens = kvq_test::initialised<kvq_append_batch>();
  tokens.n_sequences = 1;
  tokens.sequences = &pointer;
  tokens.k = numbers.data();
  tokens.v = numbers.data();
  CHECK_THROWS_WITH_AS(kvq_test::append_sequences(cache, 5, tokens), refusal.c_str(), kvq_test::Error);
  auto batch = kvq_test::initialised<kvq_extend_batch>();
  batch.n_sequences = 1;
  batch.sequences = &pointer;
  batch.k = numbers.data();
  batch.v = numbers.data();
  batch.q = numbers.data();
  batch.output = out.data();
  CHECK_THROWS_WITH_AS(kvq_test::extend(cache, 5, batch), refusal.c_str(), kvq_test::Error);
  CHECK(sequence.length(5) == 40);
  CHECK_THROWS_WITH_AS(sequence.length(kLayers), "layer is 7, must be in [0, 6]", kvq_test::Error);
  // Messages name layers by the model's numbers.
  append(cache, sequence, 3, 3, 40, 41);
  CHECK_THROWS_WITH_AS(attend(cache, sequence, 4, 41), doctest::Contains("but layer 1 of the sequence holds 40 tokens"),
                       kvq_test::Error);
  CHECK_THROWS_WITH_AS(sequence.truncate(41), "length is 41, but layer 0 holds 40 tokens", kvq_test::Error);
  for (const int32_t layer : {0, 1}) append(cache, sequence, layer, layer, 40, 42);
  CHECK_THROWS_WITH_AS(sequence.truncate(42), "length is 42, but layer 3 holds 41 tokens", kvq_test::Error);
}

TEST_CASE("shapes that cannot read the pages they name are refused by name") {
  const Context context = kvq_test::make_context();
  const auto refused = [&](auto change, kvq_status status = KVQ_E_ARGUMENT, const char* policy = "fp16") {
    Model model = sharing();
    change(model.shapes);
    return kvq_test::creation_message(context, model.options(), status, policy);
  };
  using Shapes = std::vector<kvq_layer_shape>;
  const auto with = [&](auto change) { return refused([&](Shapes& shapes) { change(shapes[1]); }); };
  CHECK(with([](kvq_layer_shape& s) { s.pages_of_layer = 4; }) ==
        "options->shapes[1].pages_of_layer is 4, must be a layer before first_layer, 4, or -1");
  CHECK(with([](kvq_layer_shape& s) { s.pages_of_layer = -2; }) ==
        "options->shapes[1].pages_of_layer is -2, must be a layer before first_layer, 4, or -1");
  CHECK(with([](kvq_layer_shape& s) { s.pages_of_layer = 2; }) ==
        "options->shapes[1].pages_of_layer is 2, which reads the pages of layer 0: name that one");
  CHECK(with([](kvq_layer_shape& s) { s.kv_heads = 2; }) ==
        "options->shapes[1].kv_heads is 2, but layer 1, whose pages are read, has 3");
  CHECK(with([](kvq_layer_shape& s) { s.key_dim = 64; }) ==
        "options->shapes[1].key_dim is 64, but layer 1, whose pages are read, has 128");
  CHECK(with([](kvq_layer_shape& s) { s.value_dim = 64; }) ==
        "options->shapes[1].value_dim is 64, but layer 1, whose pages are read, has 96");
  CHECK(with([](kvq_layer_shape& s) { s.values_are_key_prefix = 1; }) ==
        "options->shapes[1].values_are_key_prefix is 1, but layer 1, whose pages are read, has 0");
  CHECK(with([](kvq_layer_shape& s) { s.rope = KVQ_ROPE_NONE; }) ==
        "options->shapes[1].rope is 0, but layer 1, whose pages are read, has 1");
  CHECK(with([](kvq_layer_shape& s) { s.rotary_begin = 2; }) ==
        "options->shapes[1].rotary_begin is 2, but layer 1, whose pages are read, has 0");
  CHECK(with([](kvq_layer_shape& s) { s.rotary_dim = 128; }) ==
        "options->shapes[1].rotary_dim is 128, but layer 1, whose pages are read, has 64");
  CHECK(with([](kvq_layer_shape& s) { s.rope_base = 10000.0F; }) ==
        "options->shapes[1].rope_base is 10000, but layer 1, whose pages are read, has 1e+06");
  const float frequency = 0.1F;
  CHECK(with([&](kvq_layer_shape& s) { s.inv_freq = &frequency; }) ==
        "options->shapes[1].inv_freq is given, must be NULL: layers that read the pages of layer 1 have its "
        "frequencies");
  CHECK(with([](kvq_layer_shape& s) { s.q_heads = 4; }) ==
        "options->shapes[1].q_heads is 4, must be a multiple of kv_heads, 3");
  CHECK(with([](kvq_layer_shape& s) { s.logit_softcap = -1.0F; }).find("options->shapes[1].logit_softcap is -1") == 0);
  CHECK(with([](kvq_layer_shape& s) { s.recurrent = 1; }) ==
        "options->shapes[1].q_heads is given, but recurrent layers have none");

  // What the named layer has may be said again.
  Model model = sharing();
  kvq_layer_shape& said = model.shapes[1];
  said.kv_heads = 3;
  said.key_dim = 128;
  said.value_dim = 96;
  said.rope = KVQ_ROPE_HALF;
  said.rotary_dim = 64;
  said.rope_base = 1e6F;
  CHECK_NOTHROW(kvq_test::make_cache(context, model.options(), "fp16"));

  CHECK(refused([](Shapes&) {}, KVQ_E_UNSUPPORTED,
                "version: 1\nkeys: int4\nvalues: int4\neviction: {method: snapkv, budget: 128}\n") ==
        "policy evicts tokens, but options->shapes make the heads of layer 3 unlike those of others");
  Model even{{shape(1)}, 2};
  even.shapes[0].pages_of_layer = 0;
  kvq_cache_options options = even.options();
  const kvq_test::Centres scales = kvq_test::Centres::load(context, kvq_test::test_centres(options, {0, 0, 31, true}));
  options.centres = scales;
  CHECK(kvq_test::creation_message(context, options, KVQ_E_UNSUPPORTED) ==
        "options->centres has scales of a model whose layers are alike, but options->shapes make layer 1 otherwise");
}

}  // namespace conformance::shared_pages_test
