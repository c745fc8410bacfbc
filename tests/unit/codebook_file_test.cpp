#include "io/trained_files.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "core/error.h"
#include "support/allocator.h"
#include "support/damaged_files.h"
#include "support/random.h"

namespace codebook_file_test {
namespace {

using kvq::CodebookShape;
using kvq::LayerCodebook;
using kvq::ModelCodebook;
using kvq::Scope;
using kvq_test::Bytes;
using kvq_test::test_allocator;

CodebookShape small_shape(Scope scope) {
  CodebookShape shape;
  shape.n_layers = 3;
  shape.kv_heads = 2;
  shape.head_dim = 8;
  shape.pairing = scope == Scope::kLayer ? KVQ_ROPE_HALF : KVQ_ROPE_INTERLEAVED;
  shape.keys = {.stages = 2, .codes = 4, .group = 2, .norms = scope};
  shape.values = {.bits = 1, .scope = scope};
  return shape;
}

CodebookShape network_shape(Scope scope) {
  CodebookShape shape = small_shape(scope);
  shape.values.proposal = kvq::ValueProposal::kNetwork;
  shape.values.hidden = 5;
  return shape;
}

ModelCodebook::Layer random_layer(const CodebookShape& shape, uint64_t seed) {
  const auto numbers =
      std::allocate_shared<LayerCodebook>(kvq::StlAllocator<LayerCodebook>(test_allocator()), test_allocator());
  kvq_test::Random random(seed);
  kvq::for_each_array(shape, [&](const kvq::CodebookArray& array) {
    kvq::Vector<float>& target = (*numbers).*array.numbers;
    target.resize(array.shape.elements());
    for (float& value : target) value = static_cast<float>(0.3 * random.normal());
  });
  for (float& scale : numbers->channel_scale) scale = std::abs(scale) + 0.01F;
  kvq::round_as_in_files(shape, *numbers);
  ModelCodebook::Layer layer{.numbers = numbers, .tokens = 1000 + static_cast<int64_t>(seed), .value_error = 1e-3};
  for (size_t stage = 0; stage < static_cast<size_t>(shape.keys.stages); ++stage) {
    layer.key_errors[stage] = stage == 0 ? 0.25 : 0.1 / static_cast<double>(seed + stage);
  }
  return layer;
}

ModelCodebook random_codebook(const CodebookShape& shape) {
  ModelCodebook codebook(test_allocator(), shape);
  codebook.model_id = 0xFEDCBA9876543210U;
  codebook.seed = UINT64_MAX;
  codebook.note = "two texts, \"half\" each \xe2\x80\x93 \n";
  for (size_t i = 0; i < codebook.layers.size(); ++i) codebook.layers[i] = random_layer(shape, i);
  return codebook;
}

Bytes file_of(const ModelCodebook& codebook) {
  const kvq::io::SafetensorsWriter file = kvq::io::codebook_file(test_allocator(), codebook);
  Bytes bytes(file.size());
  file.write(bytes);
  return bytes;
}

void check_equal(const ModelCodebook& a, const ModelCodebook& b) {
  CHECK(a.shape == b.shape);
  CHECK(a.model_id == b.model_id);
  CHECK(a.seed == b.seed);
  CHECK(a.note == b.note);
  REQUIRE(a.layers.size() == b.layers.size());
  for (size_t i = 0; i < a.layers.size(); ++i) {
    REQUIRE((a.layers[i].numbers == nullptr) == (b.layers[i].numbers == nullptr));
    CHECK(a.layers[i].tokens == b.layers[i].tokens);
    CHECK(a.layers[i].key_errors == b.layers[i].key_errors);
    CHECK(a.layers[i].value_error == b.layers[i].value_error);
    if (a.layers[i].numbers == nullptr) continue;
    kvq::for_each_array(a.shape, [&](const kvq::CodebookArray& array) {
      CHECK((*a.layers[i].numbers).*array.numbers == (*b.layers[i].numbers).*array.numbers);
    });
  }
}

void read_checked(const Bytes& bytes) {
  const ModelCodebook codebook = kvq::io::read_codebook(test_allocator(), bytes);
  kvq::check_codebook_shape(codebook.shape, KVQ_E_INTERNAL, "");
  for (size_t layer = 0; layer < codebook.layers.size(); ++layer) {
    if (codebook.layers[layer].numbers == nullptr) continue;
    kvq::check_layer_codebook(codebook.shape, *codebook.layers[layer].numbers, static_cast<int32_t>(layer),
                              KVQ_E_INTERNAL);
  }
}

kvq_status status_of_reading(const Bytes& bytes, std::string* message) {
  return kvq_test::status_of(read_checked, bytes, message);
}

/// A codebook with a damaged layer 1.
template <typename Spoil>
Bytes spoiled(const Spoil& spoil, const CodebookShape& shape = small_shape(Scope::kLayer)) {
  ModelCodebook codebook = random_codebook(shape);
  const auto numbers = std::allocate_shared<LayerCodebook>(kvq::StlAllocator<LayerCodebook>(test_allocator()),
                                                           *codebook.layers[1].numbers);
  spoil(*numbers);
  codebook.layers[1].numbers = numbers;
  return file_of(codebook);
}

void check_damaged(const Bytes& bytes) {
  kvq_test::check_damaged(read_checked, bytes);
  CHECK(test_allocator().bytes() < 100000);
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

}  // namespace

TEST_CASE("codebooks are read back as they were written, and written again as the same bytes") {
  for (const Scope scope : {Scope::kLayer, Scope::kHead}) {
    for (const int32_t sides : {0, 1, 2}) {
      CodebookShape shape = small_shape(scope);
      if (sides == 1) shape.keys.stages = 0;
      if (sides == 2) shape.values.bits = 0;
      const ModelCodebook codebook = random_codebook(shape);
      const Bytes bytes = file_of(codebook);
      const ModelCodebook again = kvq::io::read_codebook(test_allocator(), bytes);
      check_equal(codebook, again);
      CHECK(again.complete());
      CHECK(file_of(again) == bytes);
    }
  }
}

TEST_CASE("codebooks with a network are read back as they were written") {
  for (const Scope scope : {Scope::kLayer, Scope::kHead}) {
    const ModelCodebook codebook = random_codebook(network_shape(scope));
    const Bytes bytes = file_of(codebook);
    const ModelCodebook again = kvq::io::read_codebook(test_allocator(), bytes);
    check_equal(codebook, again);
    CHECK(file_of(again) == bytes);
    CHECK(again.layers[0].numbers->network_second.size() == 2 * 16 * 5);
    CHECK(again.layers[0].numbers->proposal.empty());
  }
}

TEST_CASE("an unfinished codebook keeps the layers that it has") {
  ModelCodebook codebook = random_codebook(small_shape(Scope::kHead));
  codebook.layers[0] = {};
  codebook.layers[2] = {};
  const ModelCodebook again = kvq::io::read_codebook(test_allocator(), file_of(codebook));
  check_equal(codebook, again);
  CHECK(again.layers_present() == 1);
  CHECK(!again.complete());
}

TEST_CASE("sizes in memory and in a file follow from the shape") {
  CodebookShape shape;
  shape.n_layers = 2;
  shape.kv_heads = 2;
  shape.head_dim = 32;
  shape.keys = {.stages = 3, .codes = 16, .group = 8, .norms = Scope::kHead};
  shape.values = {.bits = 2, .scope = Scope::kLayer};
  // Keys: 2 heads · 3 stages · 16 codes · 16 pairs · 2; values: 64 scales, 64 offsets, 128 biases, 2 · 128 · 64 codes.
  constexpr size_t kNarrow = 2 * 3 * 16 * 16 * 2 + 2 * 128 * 64;
  constexpr size_t kWide = 64 + 64 + 128;
  const ModelCodebook codebook = random_codebook(shape);
  CHECK(codebook.bytes() == 2 * 4 * (kNarrow + kWide));
  const size_t data = 2 * (2 * kNarrow + 4 * kWide);
  const size_t size = file_of(codebook).size();
  CHECK(size > data);
  CHECK(size < data + 3000);
}

TEST_CASE("true bits count codes and the number that each token keeps beside them") {
  CodebookShape shape;
  shape.n_layers = 1;
  shape.kv_heads = 8;
  shape.head_dim = 128;
  shape.keys = {.stages = 11, .codes = 64, .group = 64, .norms = Scope::kHead};
  shape.values = {.bits = 1, .scope = Scope::kLayer};
  CHECK(kvq::key_bits(shape) == doctest::Approx(2.0 * 11 * 6 / 128 + 16.0 / 128));
  CHECK(kvq::value_bits(shape) == doctest::Approx(1.0 + 16.0 / 1024));
  shape.keys = {.stages = 21, .codes = 16, .group = 16, .norms = Scope::kLayer};
  shape.values = {.bits = 2, .scope = Scope::kHead};
  CHECK(kvq::key_bits(shape) == doctest::Approx(2.0 * 21 * 4 / 32 + 16.0 / 1024));
  CHECK(kvq::value_bits(shape) == doctest::Approx(2.0 + 16.0 / 128));
  shape.keys.stages = 0;
  CHECK(kvq::key_bits(shape) == 0.0);
}

TEST_CASE("numbers that cannot be used are refused with the tensor and their place") {
  std::string message;
  const auto check = [&](const Bytes& bytes, const char* reason) {
    CHECK(status_of_reading(bytes, &message) == KVQ_E_FORMAT);
    CHECK_MESSAGE(message.find(reason) != std::string::npos, message);
  };
  check(spoiled([](LayerCodebook& layer) { layer.key_codes[5] = kNan; }), "layers.1.keys.codes: number 5 is nan");
  check(spoiled([](LayerCodebook& layer) { layer.key_codes[6] = 70000.0F; }), "layers.1.keys.codes: number 6 is inf");
  check(spoiled([](LayerCodebook& layer) { layer.channel_scale[1] = 0.0F; }),
        "layers.1.values.channel_scale: number 1 is 0, must be positive");
  check(spoiled([](LayerCodebook& layer) { layer.channel_scale[2] = -1.0F; }), "must be positive");
  check(spoiled([](LayerCodebook& layer) { layer.value_codes[0] = kNan; }), "layers.1.values.codes");
  check(spoiled([](LayerCodebook& layer) { layer.value_offset[0] = kNan; }), "layers.1.values.offset");
  check(spoiled([](LayerCodebook& layer) { layer.proposal[9] = kNan; }), "layers.1.values.proposal: number 9");
  check(spoiled([](LayerCodebook& layer) { layer.proposal_bias[3] = kNan; }), "layers.1.values.proposal_bias");
  const auto check_network = [&](kvq::Vector<float> LayerCodebook::*numbers, size_t at, const char* reason) {
    check(spoiled([&](LayerCodebook& layer) { (layer.*numbers)[at] = kNan; }, network_shape(Scope::kHead)), reason);
  };
  check_network(&LayerCodebook::network_norm_gain, 3, "layers.1.values.network.norm_gain: number 3 is nan");
  check_network(&LayerCodebook::network_norm_bias, 4, "layers.1.values.network.norm_bias: number 4 is nan");
  check_network(&LayerCodebook::network_first, 5, "layers.1.values.network.first: number 5 is nan");
  check_network(&LayerCodebook::network_first_bias, 6, "layers.1.values.network.first_bias: number 6 is nan");
  check_network(&LayerCodebook::network_second, 7, "layers.1.values.network.second: number 7 is nan");
  check_network(&LayerCodebook::network_second_bias, 8, "layers.1.values.network.second_bias: number 8 is nan");
}

TEST_CASE("fields that contradict each other or the tensors are refused by name") {
  const kvq_test::WrongFields check(read_checked, file_of(random_codebook(small_shape(Scope::kLayer))));
  check("kvq.codebook", "kvq.notebook", "type");
  check(R"("version":"1")", R"("version":"2")", "version 2", KVQ_E_MISMATCH);
  check(R"("version":"1")", R"("versiom":"1")", "version is missing");
  check(R"("n_layers":"3")", R"("n_layers":"0")", "n_layers is 0");
  check(R"("n_layers":"3")", R"("n_layers":"x")", "n_layers is 'x'");
  check(R"("n_layers":"3")", R"("n_layers":"2")", "the file has 18 tensors, its metadata describe 12");
  check(R"("kv_heads":"2")", R"("kv_heads":"3")", "layers.0.keys.codes: shape");
  check(R"("head_dim":"8")", R"("head_dim":"9")", "head_dim is 9");
  check(R"("key_codes":"4")", R"("key_codes":"3")", "key_codes is 3");
  check(R"("key_group":"2")", R"("key_group":"3")", "key_group is 3");
  check(R"("key_norms":"layer")", R"("key_norms":"loyal")", "key_norms is 'loyal'");
  check(R"("rope":"half")", R"("rope":"none")", "rope is 'none'");
  check(R"("value_bits":"1")", R"("value_bits":"7")", "value_bits is 7");
  check(R"("layers.1.tokens")", R"("loyers.1.tokens")", "its metadata describe 12");
  check(R"("layers.1.tokens":"1)", R"("layers.1.tokens":"-)", "layers.1.tokens");
  for (const char* errors :
       {"0.25 x.1", "0.25 .1 ", "0.25, 0.", "        ", "0.25 inf", "0.25  .1", "-.25 0.1", "0.250.12"}) {
    check(R"("layers.0.key_errors":"0.25 0.1")", std::string(R"("layers.0.key_errors":")") + errors + '"',
          "one number for each stage");
  }
  check("\"layers.2.values.offset\"", "\"layers.2.values.upset!\"", "layers.2.values.offset is missing");
  check(R"("dtype":"F16","shape":[2,)", R"("dtype":"BF1","shape":[2,)", "dtype is 'BF1'");
}

TEST_CASE("a network that contradicts the other fields is refused by name") {
  const kvq_test::WrongFields check(read_checked, file_of(random_codebook(network_shape(Scope::kLayer))));
  check(R"("value_proposal":"network")", R"("value_proposal":"notwork")", "value_proposal is 'notwork'");
  check(R"("value_proposal":"network")", R"("value_purposes":"network")", "value_hidden is 5, must be in [0, 0]");
  check(R"("value_hidden":"5")", R"("value_hidden":"0")", "value_hidden is 0, must be in [1, 1048576]");
  check(R"("value_hidden":"5")", R"("value_hidden":"x")", "value_hidden is 'x'");
  check(R"("value_hidden":"5")", R"("value_halves":"5")", "value_hidden is missing");
  check(R"("value_hidden":"5")", R"("value_hidden":"6")", "layers.0.values.network.first: shape");
  check(R"("value_bits":"1")", R"("value_bits":"0")", "value_bits is 0: a network has no bits to propose");
  check("values.network.second_bias", "values.network.second_loss", "values.network.second_bias is missing");
  CodebookShape wide = network_shape(Scope::kLayer);
  wide.values.hidden = (1 << 20) + 1;
  try {
    kvq::check_codebook_shape(wide, KVQ_E_ARGUMENT, "");
    FAIL("accepted");
  } catch (const kvq::Error& error) {
    CHECK(std::string(error.what()) == "value_hidden is 1048577, must be in [1, 1048576]");
  }
}

TEST_CASE("every cut of a file is refused, every flipped byte is refused or gives codebooks that can be used") {
  check_damaged(file_of(random_codebook(small_shape(Scope::kHead))));
  CodebookShape shape = network_shape(Scope::kHead);
  shape.n_layers = 1;
  check_damaged(file_of(random_codebook(shape)));
}

}  // namespace codebook_file_test
