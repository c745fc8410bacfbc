#include "io/trained_files.h"

#include <doctest/doctest.h>

#include <limits>
#include <string>

#include "core/error.h"
#include "core/float16.h"
#include "formats/codec.h"
#include "support/allocator.h"
#include "support/damaged_files.h"
#include "support/random.h"

namespace centres_file_test {
namespace {

using kvq::CentresShape;
using kvq::LayerCentres;
using kvq::ModelCentres;
using kvq_test::Bytes;
using kvq_test::test_allocator;

constexpr CentresShape kShape{
    .n_layers = 3, .kv_heads = 2, .head_dim = 8, .rope = KVQ_ROPE_INTERLEAVED, .key_centres = 3, .value_centres = 1};
constexpr CentresShape kScaled{.n_layers = 3,
                               .kv_heads = 2,
                               .head_dim = 8,
                               .rope = KVQ_ROPE_HALF,
                               .key_centres = 0,
                               .value_centres = 1,
                               .key_scales = 1,
                               .value_scales = 1};
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

ModelCentres::Layer random_layer(const CentresShape& shape, uint64_t seed) {
  const auto numbers =
      std::allocate_shared<LayerCentres>(kvq::StlAllocator<LayerCentres>(test_allocator()), test_allocator());
  kvq_test::Random random(seed);
  for (const auto& [target, centres] :
       {std::pair(&numbers->keys, shape.key_centres), {&numbers->values, shape.value_centres}}) {
    target->resize(static_cast<size_t>(shape.kv_heads * centres * shape.head_dim));
    for (float& value : *target) value = kvq::from_float16(kvq::to_float16(static_cast<float>(random.normal())));
  }
  const auto channels = static_cast<size_t>(shape.kv_heads * shape.head_dim);
  const auto scale = [&random] {
    return kvq::from_float16(kvq::to_float16(static_cast<float>(0.1 + 0.9 * random.uniform())));
  };
  for (size_t i = 0; i < channels; ++i) {
    if (shape.key_scales != 0) numbers->key_scales.push_back(scale());
    if (shape.value_scales == 0) continue;
    numbers->value_scales.push_back(scale());
    numbers->value_offsets.push_back(-2.0F * scale());
  }
  const kvq::ChannelSpread spread{1.5, 8.0, 2.25, 1.125};
  return {.numbers = numbers,
          .tokens = 1000 + static_cast<int64_t>(seed),
          .key_residual = 0.1 / static_cast<double>(seed + 1),
          .value_residual = 1e-3,
          .key_spread = shape.key_scales != 0 ? spread : kvq::ChannelSpread{},
          .value_spread = shape.value_scales != 0 ? spread : kvq::ChannelSpread{}};
}

ModelCentres random_centres(const CentresShape& shape) {
  ModelCentres centres(test_allocator(), shape);
  centres.model_id = 0xFEDCBA9876543210U;
  centres.seed = UINT64_MAX;
  centres.note = "two texts, \"half\" each \xe2\x80\x93 \n";
  for (size_t i = 0; i < centres.layers.size(); ++i) centres.layers[i] = random_layer(shape, i);
  return centres;
}

Bytes file_of(const ModelCentres& centres) {
  const kvq::io::SafetensorsWriter file = kvq::io::centres_file(test_allocator(), centres);
  Bytes bytes(file.size());
  file.write(bytes);
  return bytes;
}

void check_equal(const ModelCentres& a, const ModelCentres& b) {
  CHECK(a.shape == b.shape);
  CHECK(a.model_id == b.model_id);
  CHECK(a.seed == b.seed);
  CHECK(a.note == b.note);
  REQUIRE(a.layers.size() == b.layers.size());
  for (size_t i = 0; i < a.layers.size(); ++i) {
    REQUIRE((a.layers[i].numbers == nullptr) == (b.layers[i].numbers == nullptr));
    CHECK(a.layers[i].tokens == b.layers[i].tokens);
    CHECK(a.layers[i].key_residual == b.layers[i].key_residual);
    CHECK(a.layers[i].value_residual == b.layers[i].value_residual);
    if (a.layers[i].numbers == nullptr) continue;
    CHECK(a.layers[i].numbers->keys == b.layers[i].numbers->keys);
    CHECK(a.layers[i].numbers->values == b.layers[i].numbers->values);
    CHECK(a.layers[i].numbers->key_scales == b.layers[i].numbers->key_scales);
    CHECK(a.layers[i].numbers->value_scales == b.layers[i].numbers->value_scales);
    CHECK(a.layers[i].numbers->value_offsets == b.layers[i].numbers->value_offsets);
    CHECK(a.layers[i].key_spread.noise == b.layers[i].key_spread.noise);
    CHECK(a.layers[i].value_spread.imbalance == b.layers[i].value_spread.imbalance);
  }
}

void read_checked(const Bytes& bytes) {
  const ModelCentres centres = kvq::io::read_centres(test_allocator(), bytes);
  kvq::check_centres_shape(centres.shape, KVQ_E_INTERNAL, "");
  for (size_t layer = 0; layer < centres.layers.size(); ++layer) {
    if (centres.layers[layer].numbers == nullptr) continue;
    kvq::check_layer_centres(centres.shape, *centres.layers[layer].numbers, static_cast<int32_t>(layer),
                             KVQ_E_INTERNAL);
  }
}

/// Centres with a damaged layer 1.
template <typename Spoil>
Bytes spoiled(const Spoil& spoil, const CentresShape& shape = kShape) {
  ModelCentres centres = random_centres(shape);
  const auto numbers =
      std::allocate_shared<LayerCentres>(kvq::StlAllocator<LayerCentres>(test_allocator()), *centres.layers[1].numbers);
  spoil(*numbers);
  centres.layers[1].numbers = numbers;
  return file_of(centres);
}

}  // namespace

TEST_CASE("centres are read back as they were written, and written again as the same bytes") {
  for (const int32_t sides : {0, 1, 2, 3, 4}) {
    CentresShape shape = sides < 3 ? kShape : kScaled;
    if (sides == 4) shape.value_centres = shape.value_scales = 0;
    if (sides == 1) shape.key_centres = 0;
    if (sides == 2) shape.value_centres = 0;
    const ModelCentres centres = random_centres(shape);
    const Bytes bytes = file_of(centres);
    const ModelCentres again = kvq::io::read_centres(test_allocator(), bytes);
    check_equal(centres, again);
    CHECK(again.complete());
    CHECK(again.checksum() == centres.checksum());
    CHECK(file_of(again) == bytes);
  }
}

TEST_CASE("unfinished centres keep the layers that they have") {
  ModelCentres centres = random_centres(kShape);
  centres.layers[0] = {};
  centres.layers[2] = {};
  const ModelCentres again = kvq::io::read_centres(test_allocator(), file_of(centres));
  check_equal(centres, again);
  CHECK(again.layers_present() == 1);
  CHECK(!again.complete());
}

TEST_CASE("centres take four bytes a number in memory and two in a file") {
  const ModelCentres centres = random_centres(kShape);
  constexpr size_t kNumbers = 3 * 2 * (3 + 1) * 8;
  CHECK(centres.bytes() == 4 * kNumbers);
  const size_t size = file_of(centres).size();
  CHECK(size > 2 * kNumbers);
  CHECK(size < 2 * kNumbers + 2000);
}

TEST_CASE("the checksum of centres changes with every number and with the shape") {
  const ModelCentres centres = random_centres(kShape);
  const auto checksum_with = [&](const auto& change) {
    ModelCentres other = centres;
    const auto numbers = std::allocate_shared<LayerCentres>(kvq::StlAllocator<LayerCentres>(test_allocator()),
                                                            *centres.layers[2].numbers);
    other.layers[2].numbers = numbers;
    change(other, *numbers);
    return other.checksum();
  };
  CHECK(checksum_with([](ModelCentres&, LayerCentres&) {}) == centres.checksum());
  CHECK(checksum_with([](ModelCentres&, LayerCentres& layer) { layer.keys[0] += 1.0F; }) != centres.checksum());
  CHECK(checksum_with([](ModelCentres&, LayerCentres& layer) { layer.values.back() += 1.0F; }) != centres.checksum());
  CHECK(checksum_with([](ModelCentres& other, LayerCentres&) { other.shape.rope = KVQ_ROPE_HALF; }) !=
        centres.checksum());
}

TEST_CASE("centres that are not finite are refused with the tensor and their place") {
  std::string message;
  const auto check = [&](const Bytes& bytes, const char* reason) {
    CHECK(kvq_test::status_of(read_checked, bytes, &message) == KVQ_E_FORMAT);
    CHECK_MESSAGE(message.find(reason) != std::string::npos, message);
  };
  check(spoiled([](LayerCentres& layer) { layer.keys[5] = kNan; }), "layers.1.keys.centres: number 5 is nan");
  check(spoiled([](LayerCentres& layer) { layer.keys[6] = 70000.0F; }), "layers.1.keys.centres: number 6 is inf");
  check(spoiled([](LayerCentres& layer) { layer.values[7] = kNan; }), "layers.1.values.centres: number 7 is nan");
  check(spoiled([](LayerCentres& layer) { layer.key_scales[3] = 0.0F; }, kScaled),
        "layers.1.keys.scales: number 3 is 0, must be in [0.000244141, 1]");
  check(spoiled([](LayerCentres& layer) { layer.value_scales[1] = 2.0F; }, kScaled),
        "layers.1.values.scales: number 1 is 2, must be in");
  check(spoiled([](LayerCentres& layer) { layer.value_offsets[9] = -1100.0F; }, kScaled),
        "layers.1.values.offsets: number 9 is -1100, must be in [-1024, 1024]");
}

TEST_CASE("fields of centres that contradict each other or the tensors are refused by name") {
  const kvq_test::WrongFields check(read_checked, file_of(random_centres(kShape)));
  check("kvq.centres", "kvq.centers", "type");
  check(R"("version":"1")", R"("version":"2")", "version 2", KVQ_E_MISMATCH);
  check(R"("n_layers":"3")", R"("n_layers":"0")", "n_layers is 0");
  check(R"("n_layers":"3")", R"("n_layers":"2")", "the file has 6 tensors, its metadata describe 4");
  check(R"("kv_heads":"2")", R"("kv_heads":"3")", "layers.0.keys.centres: shape");
  check(R"("head_dim":"8")", R"("head_dim":"9")", "head_dim is 9");
  check(R"("rope":"interleaved")", R"("rope":"interloaved")", "rope is 'interloaved'");
  check(R"("key_centres":"3")", R"("key_centres":"x")", "key_centres is 'x'");
  check(R"("key_centres":"3")", R"("key_centres":"4")", "layers.0.keys.centres: shape");
  check(R"("value_centres":"1")", R"("value_centres":"0")", "the file has 6 tensors, its metadata describe 3");
  check(R"("value_centres":"1")", R"("value_sentres":"1")", "value_centres is missing");
  check(R"("layers.1.tokens")", R"("loyers.1.tokens")", "its metadata describe 4");
  check(R"("layers.1.tokens":"1)", R"("layers.1.tokens":"-)", "layers.1.tokens");
  check(R"("layers.0.key_residual":"0)", R"("layers.0.key_residual":"-)", "layers.0.key_residual");
  check("\"layers.2.values.centres\"", "\"layers.2.values.centaur\"", "layers.2.values.centres is missing");
  const kvq_test::WrongFields check_scales(read_checked, file_of(random_centres(kScaled)));
  check_scales(R"("key_scales":"1")", R"("key_scales":"2")", "key_scales is 2");
  check_scales(R"("key_scales":"1")", R"("key_scales":"0")", "the file has 12 tensors, its metadata describe 9");
  check_scales(R"("value_scales":"1")", R"("value_skales":"1")", "value_scales is missing");
  check_scales(R"("layers.1.key_spread":"1)", R"("layers.1.key_spread":"-)", "layers.1.key_spread");
}

TEST_CASE("numbers of centres have limits") {
  const auto check = [](CentresShape shape, const char* reason) {
    std::string message;
    const auto run = [&](const Bytes&) { kvq::check_centres_shape(shape, KVQ_E_ARGUMENT, "options->"); };
    CHECK(kvq_test::status_of(run, {}, &message) == KVQ_E_ARGUMENT);
    CHECK_MESSAGE(message.find(reason) != std::string::npos, message);
  };
  CentresShape shape = kShape;
  shape.key_centres = 257;
  check(shape, "options->key_centres is 257, must be in [0, 256]");
  shape = kShape;
  shape.value_centres = -1;
  check(shape, "options->value_centres is -1");
  shape = kShape;
  shape.key_centres = shape.value_centres = 0;
  check(shape, "all 0");
  shape.key_scales = 2;
  check(shape, "options->key_scales is 2, must be in [0, 1]");
}

TEST_CASE(
    "every cut of a file of centres is refused, every flipped byte is refused or gives centres that can be used") {
  kvq_test::check_damaged(read_checked, file_of(random_centres(kShape)));
  kvq_test::check_damaged(read_checked, file_of(random_centres(kScaled)));
  CHECK(test_allocator().bytes() < 100000);
}

TEST_CASE("centres serve a cache of the model that they were trained for") {
  ModelCentres centres = random_centres(kShape);
  centres.model_id = 5;
  const kvq::CacheShape cache{.n_layers = 3,
                              .kv_heads = 2,
                              .head_dim = 8,
                              .rope = KVQ_ROPE_INTERLEAVED,
                              .rotary_dim = 4,
                              .model_id = 5,
                              .scales = 0};
  const auto check = [&](const kvq::CacheShape& shape, bool keys, bool values, std::string* message) {
    return kvq_test::status_of([&](const Bytes&) { kvq::check_centres(centres, shape, keys, values); }, {}, message);
  };
  const auto refused = [&](const auto& change, const char* reason, kvq_status expected = KVQ_E_MISMATCH) {
    std::string message;
    kvq::CacheShape other = cache;
    change(other);
    CHECK(check(other, true, true, &message) == expected);
    CHECK_MESSAGE(message.find(reason) != std::string::npos, message);
  };
  CHECK(check(cache, true, true, nullptr) == KVQ_OK);
  refused([](kvq::CacheShape& other) { other.n_layers = 4; }, "options->centres was trained for n_layers 3");
  refused([](kvq::CacheShape& other) { other.kv_heads = 1; }, "options->centres was trained for kv_heads 2");
  refused([](kvq::CacheShape& other) { other.head_dim = 16; }, "options->centres was trained for head_dim 8");
  refused([](kvq::CacheShape& other) { other.rope = KVQ_ROPE_HALF; }, "options->centres was trained for rope 2");
  refused([](kvq::CacheShape& other) { other.model_id = 6; }, "options->centres was trained for model_id 5");
  kvq::CacheShape other = cache;
  other.model_id = 0;  // unknown model
  CHECK(check(other, true, true, nullptr) == KVQ_OK);
  other.rope = KVQ_ROPE_NONE;  // irrelevant to values
  CHECK(check(other, false, true, nullptr) == KVQ_OK);
  const auto unchanged = [](kvq::CacheShape&) {};
  centres.shape.key_centres = 0;
  refused(unchanged, "has none for keys", KVQ_E_ARGUMENT);
  CHECK(check(cache, false, true, nullptr) == KVQ_OK);
  centres.shape.value_centres = 0;
  centres.shape.key_centres = 3;
  refused(unchanged, "has none for values", KVQ_E_ARGUMENT);
  CHECK(check(cache, true, false, nullptr) == KVQ_OK);
  centres.layers[1] = {};
  refused(unchanged, "options->centres has 2 of 3 layers: finish its training", KVQ_E_ARGUMENT);
}

}  // namespace centres_file_test
