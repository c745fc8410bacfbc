// Caches whose layers differ: sizes of keys and values, latents, heads, RoPE, scale and soft cap.
#include "page_format.h"
#include "support/failure.h"
#include "support/handles.h"
#include "support/random.h"
#include "support/reference.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

namespace conformance::layer_shapes_test {
namespace {

using kvq_test::Cache;
using kvq_test::Context;
using kvq_test::Sequence;

constexpr int32_t kTokens = 300;

kvq_layer_shape shape(int32_t layer, int32_t q_heads, int32_t kv_heads, int32_t key_dim, int32_t value_dim) {
  auto shape = kvq_test::initialised<kvq_layer_shape>();
  shape.first_layer = layer;
  shape.q_heads = q_heads;
  shape.kv_heads = kv_heads;
  shape.key_dim = key_dim;
  shape.value_dim = value_dim;
  return shape;
}

// A model's cache; the first layer is as the options say.
struct Model {
  explicit Model(std::vector<kvq_layer_shape> shapes_) : shapes(std::move(shapes_)) {}

  std::vector<kvq_layer_shape> shapes;

  kvq_cache_options options() const {
    kvq_cache_options options = kvq_test::cache_options(4, 2, 64, static_cast<int32_t>(shapes.size()) + 1);
    options.shapes = shapes.data();
    options.n_shapes = static_cast<int32_t>(shapes.size());
    return options;
  }
};

kvq_layer_shape latent(int32_t layer, int32_t q_heads, int32_t kv_heads, int32_t key_dim, int32_t value_dim) {
  kvq_layer_shape made = shape(layer, q_heads, kv_heads, key_dim, value_dim);
  made.values_are_key_prefix = 1;
  return made;
}

// Of every kind.
Model any_layers() {
  Model model({shape(1, 4, 4, 192, 128), shape(2, 6, 1, 512, 512), shape(3, 2, 1, 576, 512), shape(4, 8, 2, 80, 96),
               shape(5, 2, 2, 8, 256), latent(6, 16, 1, 576, 512), latent(7, 6, 2, 72, 24), latent(8, 2, 2, 88, 80)});
  model.shapes[0].rope_base = 1e6F;
  model.shapes[1].rope = KVQ_ROPE_NONE;
  model.shapes[1].logit_softcap = 30.0F;
  model.shapes[2].rotary_begin = 512;
  model.shapes[2].scale = 0.06F;
  model.shapes[3].rope = KVQ_ROPE_INTERLEAVED;
  model.shapes[3].rotary_begin = 10;
  model.shapes[3].rotary_dim = 20;
  model.shapes[5].scale = 0.06F;
  model.shapes[6].rope = KVQ_ROPE_INTERLEAVED;
  model.shapes[6].rotary_begin = 40;
  model.shapes[6].logit_softcap = 25.0F;
  model.shapes[7].rope = KVQ_ROPE_NONE;
  return model;
}

// Equal on both sides.
Model equal_layers() {
  Model model({shape(1, 8, 1, 128, 128), shape(2, 6, 3, 256, 256), shape(3, 4, 2, 80, 80), shape(4, 4, 2, 0, 0)});
  model.shapes[0].rope_base = 1e6F;
  model.shapes[0].logit_softcap = 20.0F;
  model.shapes[1].rope = KVQ_ROPE_NONE;
  model.shapes[2].rotary_dim = 32;
  model.shapes[3].scale = 0.3F;
  return model;
}

// Heads as models have them.
Model grid() {
  struct Channels {
    int32_t keys;
    int32_t values;
    bool is_latent;
  };
  const Channels channels[] = {{64, 64, false},   {80, 80, false},   {96, 96, false},
                               {128, 128, false}, {256, 256, false}, {192, 128, false},
                               {512, 512, false}, {576, 512, false}, {576, 512, true}};
  const std::pair<int32_t, int32_t> heads[] = {{1, 1}, {32, 1}, {24, 2}, {128, 1}, {16, 2}};
  Model model({});
  for (const auto& [q_heads, kv_heads] : heads) {
    for (const Channels& each : channels) {
      const auto layer = static_cast<int32_t>(model.shapes.size()) + 1;
      model.shapes.push_back((each.is_latent ? latent : shape)(layer, q_heads, kv_heads, each.keys, each.values));
      model.shapes.back().scale = 0.06F;
    }
  }
  return model;
}

kvq_layer_info layer_of(const Cache& cache, int32_t layer) { return cache.describe_layer(layer); }

// RoPE of a layer in float64.
kvq_test::Rotation rotation_of(const kvq_layer_info& info, const kvq_layer_shape* shape) {
  kvq_test::Rotation rotation{info.rope, {}, static_cast<size_t>(info.rotary_begin)};
  const double base = shape != nullptr && shape->rope_base != 0.0F ? double{shape->rope_base} : 10000.0;
  for (int32_t j = 0; j < info.rotary_dim / 2; ++j) {
    rotation.inv_freq.push_back(std::pow(base, -2.0 * j / info.rotary_dim));
  }
  return rotation;
}

std::vector<float> tensor(int32_t tokens, int32_t heads, int32_t dim, uint64_t seed) {
  return kvq_test::normal_tensor(static_cast<size_t>(tokens) * static_cast<size_t>(heads * dim), seed);
}

struct LayerTokens {
  LayerTokens(const kvq_layer_info& info, int32_t layer)
      : k(tensor(kTokens, info.kv_heads, info.key_dim, 10 + static_cast<uint64_t>(layer))),
        v(tensor(kTokens, info.kv_heads, info.value_dim, 50 + static_cast<uint64_t>(layer))),
        has_values(info.values_are_key_prefix == 0) {
    const auto key_dim = static_cast<size_t>(info.key_dim);
    const auto value_dim = static_cast<size_t>(info.value_dim);
    // An offset common to all tokens, which scales of a sequence's own take apart.
    for (size_t i = 0; !has_values && i < k.size(); ++i) k[i] += i % key_dim % 5 == 0 ? 0.5F : 0.0F;
    for (size_t i = 0; !has_values && i < v.size(); ++i) v[i] = k[i / value_dim * key_dim + i % value_dim];
  }
  // As appended, from a row on.
  const float* given_values(size_t row, const kvq_layer_info& info) const {
    return has_values ? v.data() + row * static_cast<size_t>(info.value_dim) : nullptr;
  }

  std::vector<float> k;
  std::vector<float> v;
  bool has_values;
};

// Tokens [begin, end) of every layer, `chunk` at a time.
void append(const Cache& cache, Sequence& sequence, int32_t begin, int32_t end, int32_t chunk) {
  for (int32_t layer = 0; layer < cache.describe().n_layers; ++layer) {
    const kvq_layer_info info = layer_of(cache, layer);
    const LayerTokens tokens(info, layer);
    for (int32_t at = begin; at < end; at += chunk) {
      const auto first = static_cast<size_t>(at * info.kv_heads);
      kvq_test::append(sequence.get(), layer, std::min(chunk, end - at),
                       tokens.k.data() + first * static_cast<size_t>(info.key_dim), tokens.given_values(first, info));
    }
  }
}

double relative(std::span<const double> expected, std::span<const float> found) {
  double error = 0.0;
  double size = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    error += std::pow(double{found[i]} - expected[i], 2);
    size += std::pow(expected[i], 2);
  }
  return std::sqrt(error / size);
}

// Error of a format's stored numbers on normal ones, for any head size.
double stored_limit(const std::string& format) {
  if (format == "fp16") return 1e-3;
  if (format == "int8") return 0.012;
  if (format.starts_with("int4") || format == "gs4") return 0.14;
  if (format == "gs3" || format == "gt3" || format == "int3") return 0.26;
  if (format == "gt2" || format == "gs2") return 0.42;
  return 0.8;
}

// Attention of the newest queries of a sequence, several times over.
class NewestQueries {
 public:
  NewestQueries(const Model& model, const Cache& cache, const Sequence& sequence, int32_t layer, int32_t queries,
                int32_t copies = 1, int32_t window = 0, int32_t mask_slots = 0)
      : info(layer_of(cache, layer)),
        rotation(rotation_of(info, layer > 0 ? &model.shapes[static_cast<size_t>(layer) - 1] : nullptr)),
        queries_(queries),
        window_(window),
        mask_slots_(mask_slots) {
    const int32_t all = queries * copies;
    kvq_test::Random random(static_cast<uint64_t>(layer) + 1);
    for (size_t i = 0; i < static_cast<size_t>(all) * words(); ++i) {
      mask_.push_back(static_cast<uint32_t>(random.bits()));
    }
    q_ = tensor(all, info.q_heads, info.key_dim, 90 + static_cast<uint64_t>(layer));
    out_.assign(static_cast<size_t>(all * info.q_heads * info.value_dim), -7.0F);
    lse_.resize(static_cast<size_t>(all * info.q_heads));
    const std::vector<const kvq_sequence*> sequences(static_cast<size_t>(copies), sequence.get());
    const std::vector<int32_t> counts(static_cast<size_t>(copies), queries);
    auto batch = kvq_test::initialised<kvq_attend_batch>();
    batch.n_sequences = copies;
    batch.sequences = sequences.data();
    batch.query_counts = counts.data();
    batch.q = q_.data();
    batch.output = out_.data();
    batch.lse = lse_.data();
    batch.sliding_window = window;
    batch.mask = mask_.empty() ? nullptr : mask_.data();
    batch.mask_slots = mask_slots;
    kvq_test::attend(cache.get(), layer, batch);
  }

  // Row i of query `query` on a KV head, over what is stored, in float64.
  void check(int32_t query, int32_t head, int32_t i, std::span<const float> k, std::span<const float> v,
             std::span<const int32_t> positions) const {
    const auto key_dim = static_cast<size_t>(info.key_dim);
    const auto value_dim = static_cast<size_t>(info.value_dim);
    const auto row = static_cast<size_t>(query * info.q_heads + head * (info.q_heads / info.kv_heads) + i);
    std::vector<double> of_query(q_.begin() + static_cast<ptrdiff_t>(row * key_dim),
                                 q_.begin() + static_cast<ptrdiff_t>((row + 1) * key_dim));
    const int32_t position = kTokens - queries_ + query % queries_;
    rotation.apply(of_query, position);
    const kvq_test::Attended expected =
        kvq_test::attend_to<float>({.scale = double{info.scale},
                                    .sliding_window = window_,
                                    .logit_softcap = double{info.logit_softcap},
                                    .mask = std::span(mask_).subspan(static_cast<size_t>(query) * words(), words()),
                                    .mask_slots = mask_slots_},
                                   of_query, position, k, v, positions);
    CHECK(relative(expected.out, std::span(out_).subspan(row * value_dim, value_dim)) < 0.035);
    CHECK(lse_[row] == doctest::Approx(expected.lse).epsilon(0.01));
  }

  const kvq_layer_info info;
  const kvq_test::Rotation rotation;

 private:
  size_t words() const { return kvq_test::mask_words(mask_slots_); }

  int32_t queries_;
  int32_t window_;
  int32_t mask_slots_;
  std::vector<uint32_t> mask_;
  std::vector<float> q_;
  std::vector<float> out_;
  std::vector<float> lse_;
};

void check_layer(const Model& model, const Cache& cache, const Sequence& sequence, int32_t layer,
                 const std::string& format, int32_t queries = 3, int32_t mask_slots = 0) {
  const NewestQueries newest(model, cache, sequence, layer, queries, 1, 0, mask_slots);
  const kvq_layer_info& info = newest.info;
  const LayerTokens tokens(info, layer);
  std::vector<int32_t> positions(kTokens);
  for (int32_t i = 0; i < kTokens; ++i) positions[static_cast<size_t>(i)] = i;
  const auto key_dim = static_cast<size_t>(info.key_dim);
  const auto value_dim = static_cast<size_t>(info.value_dim);
  const int32_t group = info.q_heads / info.kv_heads;
  for (int32_t head = 0; head < info.kv_heads; ++head) {
    std::vector<float> k(kTokens * key_dim);
    std::vector<float> v(kTokens * value_dim);
    sequence.decode(layer, head, 0, kTokens, k, v, {});
    std::vector<double> exact_k;
    std::vector<double> exact_v;
    for (int32_t token = 0; token < kTokens; ++token) {
      const auto row = static_cast<size_t>(token * info.kv_heads + head);
      std::vector<double> key(tokens.k.begin() + static_cast<ptrdiff_t>(row * key_dim),
                              tokens.k.begin() + static_cast<ptrdiff_t>((row + 1) * key_dim));
      newest.rotation.apply(key, token);
      exact_k.insert(exact_k.end(), key.begin(), key.end());
      exact_v.insert(exact_v.end(), tokens.v.begin() + static_cast<ptrdiff_t>(row * value_dim),
                     tokens.v.begin() + static_cast<ptrdiff_t>((row + 1) * value_dim));
    }
    CHECK(relative(exact_k, k) < stored_limit(format));
    CHECK(relative(exact_v, v) < stored_limit(format));
    for (int32_t query = 0; query < queries; ++query) {
      for (int32_t i = 0; i < group; ++i) newest.check(query, head, i, k, v, positions);
    }
  }
}

const std::vector<std::string>& formats() {
  static const std::vector<std::string> all = {"fp16", "int8", "int4", "int4+hadamard", "int3", "int2", "gs4",
                                               "gs3",  "gs2",  "gs1",  "gt3",           "gt2",  "gt1"};
  return all;
}

std::string policy_text(const std::string& keys, const std::string& values, bool calibrated) {
  return "version: 1\nkeys: " + keys + "\nvalues: " + values + "\ncalibrate: " + (calibrated ? "first" : "none") + "\n";
}

// All layers but the first, attended to by the newest queries, on every backend.
void check_layers(const Model& model, int32_t queries, int32_t mask_slots = 0) {
  for (const std::string& backend : kvq_test::backends()) {
    const Context context = kvq_test::make_context(backend.c_str());
    for (const std::string format : {"fp16", "int4+hadamard", "gs4", "gt2"}) {
      CAPTURE(backend);
      CAPTURE(format);
      const Cache cache = kvq_test::make_cache(context, model.options(), policy_text(format, format, format == "gs4"));
      Sequence sequence(cache);
      append(cache, sequence, 0, kTokens, kTokens);
      for (int32_t layer = 1; layer < cache.describe().n_layers; ++layer) {
        CAPTURE(layer);
        check_layer(model, cache, sequence, layer, format, queries, mask_slots);
      }
    }
  }
}

// Some of the rows of so many that a GPU takes them in blocks.
void check_some_rows(const Model& model, const Cache& cache, const Sequence& sequence, int32_t layer, int32_t queries,
                     int32_t copies, int32_t window) {
  const NewestQueries newest(model, cache, sequence, layer, queries, copies, window);
  const int32_t group = newest.info.q_heads / newest.info.kv_heads;
  for (int32_t head = 0; head < newest.info.kv_heads; ++head) {
    std::vector<float> k(static_cast<size_t>(kTokens * newest.info.key_dim));
    std::vector<float> v(static_cast<size_t>(kTokens * newest.info.value_dim));
    std::vector<int32_t> positions(kTokens);
    sequence.decode(layer, head, 0, kTokens, k, v, positions);
    const int32_t rows = queries * copies * group;
    for (int32_t i = 0; i < 24; ++i) {
      const int32_t row = i == 0 ? rows - 1 : static_cast<int32_t>(int64_t{i} * 7919 % rows);
      CAPTURE(row);
      newest.check(row / group, head, row % group, k, v, positions);
    }
  }
}

}  // namespace

TEST_CASE("layers of every shape are stored and attended to as in float64, on every instruction set and device") {
  for (const std::string& backend : kvq_test::backends()) {
    const Context context = kvq_test::make_context(backend.c_str());
    for (const Model& model : {any_layers(), equal_layers()}) {
      for (const std::string& format : formats()) {
        for (const bool calibrated : {false, true}) {
          CAPTURE(backend);
          CAPTURE(format);
          CAPTURE(calibrated);
          const Cache cache = kvq_test::make_cache(context, model.options(), policy_text(format, format, calibrated));
          Sequence sequence(cache);
          append(cache, sequence, 0, kTokens, 70);
          for (int32_t layer = 0; layer < cache.describe().n_layers; ++layer) {
            CAPTURE(layer);
            check_layer(model, cache, sequence, layer, format);
          }
        }
      }
    }
  }
}

TEST_CASE("any number of query heads attends to KV heads of any size as in float64") { check_layers(grid(), 1); }

TEST_CASE("a mask hides tokens from queries of heads of any shape") {
  check_layers(any_layers(), 3, 70);
  check_layers(equal_layers(), 20, 45);
}

TEST_CASE("many queries attend to heads of any shape as in float64") {
  Model model({shape(1, 16, 2, 192, 128), shape(2, 16, 1, 80, 128), shape(3, 16, 2, 128, 256), shape(4, 8, 1, 320, 64),
               latent(5, 16, 1, 192, 128)});
  model.shapes[0].rope_base = 1e6F;
  model.shapes[0].rotary_begin = 128;
  model.shapes[1].rope = KVQ_ROPE_INTERLEAVED;
  model.shapes[1].rotary_begin = 10;
  model.shapes[1].rotary_dim = 20;
  model.shapes[2].rotary_begin = 32;
  model.shapes[2].rotary_dim = 64;
  model.shapes[2].logit_softcap = 30.0F;
  check_layers(model, 48);
}

TEST_CASE("blocks of many rows attend to large heads and latents as in float64") {
  if (const std::string reason = kvq_test::why_no_cuda(); !reason.empty()) {
    MESSAGE("skipped: ", reason);
    return;
  }
  auto device = kvq_test::initialised<kvq_device_info>();
  REQUIRE(kvq_device_describe(KVQ_DEVICE_CUDA, 0, nullptr, &device, nullptr) == KVQ_OK);
  const bool emulated = std::string(device.name) == "emulated";
  Model model({shape(1, 128, 2, 512, 512), latent(2, 128, 1, 576, 512), latent(3, 128, 1, 288, 256),
               shape(4, 128, 2, 320, 512), latent(5, 128, 1, 544, 512), shape(6, 128, 2, 384, 264),
               latent(7, 128, 1, 440, 400)});
  model.shapes[0].logit_softcap = 30.0F;
  model.shapes[1].scale = 0.06F;
  model.shapes[2].rope = KVQ_ROPE_INTERLEAVED;
  model.shapes[3].rotary_begin = 32;
  model.shapes[3].rotary_dim = 64;
  for (const std::string backend : {"cuda", "cuda/sm_80"}) {
    const Context context = kvq_test::make_context(backend.c_str());
    const bool brief = emulated || backend != "cuda";
    for (const std::string format : {"fp16", "gs4", "int8", "int4+hadamard", "int3", "gs2", "gs1", "gt2"}) {
      if (brief && format == "int8") break;
      CAPTURE(backend);
      CAPTURE(format);
      const Cache cache = kvq_test::make_cache(context, model.options(), policy_text(format, format, format == "gs4"));
      Sequence sequence(cache);
      append(cache, sequence, 0, kTokens, kTokens);
      for (int32_t layer = 1; layer < cache.describe().n_layers; ++layer) {
        CAPTURE(layer);
        const int32_t window = layer == 2 ? 90 : 0;
        // Blocks that share decoded pages, and blocks that decode them.
        check_some_rows(model, cache, sequence, layer, emulated ? 5 : 192, 1, window);
        check_some_rows(model, cache, sequence, layer, emulated ? 1 : 3, emulated ? 5 : 56, window);
      }
    }
    if (emulated) break;
  }
}

TEST_CASE("sequences of uneven layers fork, truncate, are saved, reserved, extended and predicted like others") {
  for (const char* device : kvq_test::devices()) {
    const Model model = any_layers();
    const Context context = kvq_test::make_context(device);
    for (const std::string policy : {"gs2", "int4+hadamard", "gt2/gs4"}) {
      for (const bool calibrated : {false, true}) {
        CAPTURE(policy);
        CAPTURE(calibrated);
        const std::string text =
            policy_text(policy.substr(0, policy.find('/')), policy.substr(policy.find('/') + 1), calibrated);
        const Cache cache = kvq_test::make_cache(context, model.options(), text);
        Sequence whole(cache);
        append(cache, whole, 0, kTokens, kTokens);
        Sequence pieces(cache);
        append(cache, pieces, 0, 40, 40);
        append(cache, pieces, 40, 45, 1);
        append(cache, pieces, 45, kTokens, 33);
        const auto find_scales = [&](Sequence& sequence) { sequence.reserve(0); };
        for (Sequence* each : {&whole, &pieces}) find_scales(*each);
        CHECK((whole.save() == pieces.save()));
        CHECK((Sequence::load(cache, whole.save()).save() == whole.save()));
        Sequence fork = pieces.fork();
        fork.truncate(kTokens - 10);
        append(cache, fork, kTokens - 10, kTokens, 10);
        find_scales(fork);
        CHECK((fork.save() == whole.save()));
        Sequence reserved(cache);
        reserved.reserve(kTokens);
        append(cache, reserved, 0, kTokens, 64);
        find_scales(reserved);
        CHECK((reserved.save() == whole.save()));
        // Shapes tell snapshots apart.
        kvq_cache_options other = model.options();
        Model changed = model;
        changed.shapes[1].key_dim = 240;
        changed.shapes[1].value_dim = 240;
        other.shapes = changed.shapes.data();
        const Cache refusing = kvq_test::make_cache(context, other, text);
        CHECK_THROWS_WITH_AS(Sequence::load(refusing, whole.save()), doctest::Contains("in layer 2, this cache 240"),
                             kvq_test::Error);
        const Cache plain = kvq_test::make_cache(context, kvq_test::cache_options(4, 2, 64, other.n_layers), text);
        CHECK_THROWS_WITH_AS(Sequence::load(plain, whole.save()), doctest::Contains("layers of different shapes"),
                             kvq_test::Error);
      }
    }
    const Cache cache = kvq_test::make_cache(context, model.options(), "gs4");
    const kvq_usage predicted = cache.predict_usage(2, kTokens, 0);
    std::vector<Sequence> sequences;
    for (int32_t i = 0; i < 2; ++i) {
      sequences.emplace_back(cache);
      sequences.back().reserve(kTokens);
      append(cache, sequences.back(), 0, kTokens, kTokens);
    }
    const kvq_usage usage = cache.usage();
    CHECK(usage.sealed_bytes == predicted.sealed_bytes);
    CHECK(usage.fp16_bytes == predicted.fp16_bytes);
    CHECK(usage.scalars == predicted.scalars);
    if (device == nullptr) CHECK(usage.metadata_bytes == predicted.metadata_bytes);
  }
}

TEST_CASE("a layer's extension equals appending and attending, whatever its shape") {
  const Model model = any_layers();
  const Context context = kvq_test::make_context();
  const Cache cache = kvq_test::make_cache(context, model.options(), "gs4");
  Sequence extended(cache);
  Sequence appended(cache);
  append(cache, appended, 0, 20, 20);
  for (int32_t layer = 0; layer < cache.describe().n_layers; ++layer) {
    CAPTURE(layer);
    const kvq_layer_info info = layer_of(cache, layer);
    const LayerTokens tokens(info, layer);
    const std::vector<float> q = tensor(20, info.q_heads, info.key_dim, 5);
    std::vector<float> out(static_cast<size_t>(20 * info.q_heads * info.value_dim));
    std::vector<float> expected(out.size());
    kvq_sequence* pointer = extended.get();
    const int32_t count = 20;
    auto batch = kvq_test::initialised<kvq_extend_batch>();
    batch.n_sequences = 1;
    batch.sequences = &pointer;
    batch.token_counts = &count;
    batch.k = tokens.k.data();
    batch.v = tokens.given_values(0, info);
    batch.q = q.data();
    batch.output = out.data();
    kvq_test::extend(cache.get(), layer, batch);
    const kvq_sequence* of_appended = appended.get();
    auto attend = kvq_test::initialised<kvq_attend_batch>();
    attend.n_sequences = 1;
    attend.sequences = &of_appended;
    attend.query_counts = &count;
    attend.q = q.data();
    attend.output = expected.data();
    kvq_test::attend(cache.get(), layer, attend);
    CHECK((out == expected));
  }
  CHECK((extended.save() == appended.save()));
}

TEST_CASE("the same tokens are evicted from latents as from keys and values apart, and the rest is attended to") {
  constexpr int32_t kBudget = 120;
  for (const std::string& backend : kvq_test::backends()) {
    const Context context = kvq_test::make_context(backend.c_str());
    for (const std::string format : {"fp16", "gs4"}) {
      CAPTURE(backend);
      CAPTURE(format);
      std::vector<std::vector<int32_t>> kept;
      for (const bool is_latent : {true, false}) {
        CAPTURE(is_latent);
        Model model({(is_latent ? latent : shape)(0, 4, 1, 96, 64)});
        model.shapes[0].n_layers = 2;
        model.shapes[0].rotary_begin = 64;
        model.shapes[0].scale = 0.2F;
        kvq_cache_options options = model.options();
        options.kv_heads = 1;
        const Cache cache = kvq_test::make_cache(
            context, options,
            "version: 1\nkeys: " + format + "\nvalues: " + format +
                "\ncalibrate: none\neviction: {method: snapkv, budget: " + std::to_string(kBudget) + "}\n");
        Sequence sequence(cache);
        kvq_sequence* pointer = sequence.get();
        std::vector<float> out(static_cast<size_t>(kTokens) * 4 * 64);
        for (int32_t layer = 0; layer < 2; ++layer) {
          const std::vector<float> k = tensor(kTokens, 1, 96, 7 + static_cast<uint64_t>(layer));
          std::vector<float> v;
          for (size_t i = 0; i < k.size(); i += 96) {
            v.insert(v.end(), k.begin() + static_cast<ptrdiff_t>(i), k.begin() + static_cast<ptrdiff_t>(i + 64));
          }
          const std::vector<float> q = tensor(kTokens, 4, 96, 17 + static_cast<uint64_t>(layer));
          auto batch = kvq_test::initialised<kvq_extend_batch>();
          batch.n_sequences = 1;
          batch.sequences = &pointer;
          batch.token_counts = &kTokens;
          batch.k = k.data();
          batch.v = is_latent ? nullptr : v.data();
          batch.q = q.data();
          batch.output = out.data();
          kvq_test::extend(cache.get(), layer, batch);
        }
        sequence.compress();
        for (int32_t layer = 0; layer < 2; ++layer) {
          std::vector<float> k(static_cast<size_t>(kBudget) * 96);
          std::vector<float> v(static_cast<size_t>(kBudget) * 64);
          std::vector<int32_t> positions(static_cast<size_t>(kBudget));
          sequence.decode(layer, 0, 0, kBudget, k, v, positions);
          const std::vector<float> q = tensor(1, 4, 96, 27);
          std::vector<float> found(4 * 64);
          const kvq_sequence* reader = sequence.get();
          auto batch = kvq_test::initialised<kvq_attend_batch>();
          batch.n_sequences = 1;
          batch.sequences = &reader;
          batch.q = q.data();
          batch.output = found.data();
          kvq_test::attend(cache.get(), layer, batch);
          for (size_t head = 0; head < 4; ++head) {
            std::vector<double> of_query(q.begin() + static_cast<ptrdiff_t>(head * 96),
                                         q.begin() + static_cast<ptrdiff_t>((head + 1) * 96));
            rotation_of(layer_of(cache, layer), &model.shapes[0]).apply(of_query, kTokens - 1);
            const kvq_test::Attended expected =
                kvq_test::attend_to<float>({.scale = 0.2F}, of_query, kTokens - 1, k, v, positions);
            CHECK(relative(expected.out, std::span(found).subspan(head * 64, 64)) < 0.03);
          }
          kept.push_back(std::move(positions));
        }
      }
      if (format != "fp16") continue;  // elsewhere, the same numbers are stored in two ways
      CHECK(kept[0] == kept[2]);
      CHECK(kept[1] == kept[3]);
      CHECK(kept[0] != kept[1]);
    }
  }
}

TEST_CASE("shapes that make no sense are refused by name") {
  const Context context = kvq_test::make_context();
  const auto refused = [&](auto change) {
    Model model({shape(1, 0, 0, 0, 0), shape(2, 0, 0, 0, 0)});
    change(model.shapes);
    return kvq_test::creation_message(context, model.options(), KVQ_E_ARGUMENT);
  };
  using Shapes = std::vector<kvq_layer_shape>;
  CHECK(refused([](Shapes& s) { s[0].first_layer = 3; }) == "options->shapes[0].first_layer is 3, must be in [0, 2]");
  CHECK(refused([](Shapes& s) { s[1].n_layers = 2; }) == "options->shapes[1].n_layers is 2, must be 1");
  CHECK(refused([](Shapes& s) { s[1].first_layer = 1; }) == "options->shapes[1] has layers of options->shapes[0]");
  CHECK(refused([](Shapes& s) { s[0].q_heads = 3; }) ==
        "options->shapes[0].q_heads is 3, must be a multiple of kv_heads, 2");
  CHECK(refused([](Shapes& s) { s[0].key_dim = 584; }) == "options->shapes[0].key_dim is 584, must be in [8, 576]");
  CHECK(refused([](Shapes& s) { s[0].value_dim = 520; }) == "options->shapes[0].value_dim is 520, must be in [8, 512]");
  CHECK(refused([](Shapes& s) { s[0].value_dim = 12; }) ==
        "options->shapes[0].value_dim is 12, must be a multiple of 8");
  CHECK(refused([](Shapes& s) { s[0].rotary_begin = 63; }) ==
        "options->shapes[0].rotary_begin is 63, must be in [0, 62]");
  CHECK(refused([](Shapes& s) { s[0].rotary_begin = 3; }) == "options->shapes[0].rotary_begin is 3, must be even");
  CHECK(refused([](Shapes& s) {
          s[0].rotary_begin = 32;
          s[0].rotary_dim = 34;
        }) == "options->shapes[0].rotary_dim is 34, must be in [0, 32]");
  CHECK(refused([](Shapes& s) { s[0].values_are_key_prefix = 2; }) ==
        "options->shapes[0].values_are_key_prefix is 2, must be in [0, 1]");
  CHECK(refused([](Shapes& s) { s[0].values_are_key_prefix = 1; }) ==
        "options->shapes[0].values_are_key_prefix is 1, but keys have 64 channels, which must be more than the 64 of "
        "values");
  CHECK(refused([](Shapes& s) {
          s[0].values_are_key_prefix = 1;
          s[0].key_dim = 96;
          s[0].rotary_begin = 32;
        }) ==
        "options->shapes[0].rotary_begin is 32, must be at least the 64 channels of values, which are stored with "
        "the keys");
  CHECK(refused([](Shapes& s) { s[0].rope = 7; }).find("options->shapes[0].rope is 7") == 0);
  CHECK(refused([](Shapes& s) { s[0].rope_base = -1.0F; }).find("options->shapes[0].rope_base is -1") == 0);
  CHECK(refused([](Shapes& s) { s[0].scale = std::nanf(""); }).find("options->shapes[0].scale is") == 0);
  CHECK(refused([](Shapes& s) { s[0].logit_softcap = -1.0F; }).find("options->shapes[0].logit_softcap is -1") == 0);
  CHECK(refused([](Shapes& s) { s[1].struct_size = 4; }).find("options->shapes[1]->struct_size is 4") == 0);
  const std::vector<float> frequencies(32, 0.1F);
  Model narrow({shape(1, 0, 0, 32, 32)});
  kvq_cache_options options = narrow.options();
  options.inv_freq = frequencies.data();
  CHECK(kvq_test::creation_message(context, options, KVQ_E_ARGUMENT) ==
        "options->shapes[0].inv_freq is NULL, but options->inv_freq has the frequencies of 64 channels, not of 32");
  CHECK(kvq_test::creation_message(context, Model({shape(1, 4, 1, 64, 64)}).options(), KVQ_E_UNSUPPORTED,
                                   "version: 1\nkeys: int4\nvalues: int4\neviction: {method: snapkv, budget: 128}\n")
            .find("heads of layer 1 unlike those of others") != std::string::npos);
  // The arrays that results of compressing fill have the options' number of KV heads.
  Model even({shape(0, 4, 4, 64, 64)});
  even.shapes[0].n_layers = 2;
  CHECK(kvq_test::creation_message(context, even.options(), KVQ_E_UNSUPPORTED,
                                   "version: 1\nkeys: int4\nvalues: int4\neviction: {method: snapkv, budget: 128}\n")
            .find("options->kv_heads is 2, and that of options->shapes[0] is 4") != std::string::npos);
}

}  // namespace conformance::layer_shapes_test
