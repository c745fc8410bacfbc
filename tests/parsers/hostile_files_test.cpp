#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "llama/config.h"
#include "llama/error.h"
#include "llama/model_shape.h"
#include "llama/safetensors.h"
#include "llama/tokenizer.h"
#include "llama/weights.h"
#include "support/places.h"
#include "support/safetensors_bytes.h"
#include "support/scratch_directory.h"

namespace hostile_files_test {
namespace {

using nlohmann::json;

/// Damages a file like a bad disk, a truncated download or an attacker. Equal seeds give equal damage.
class Vandal {
 public:
  explicit Vandal(uint32_t seed) : random_(seed) {}

  std::string change_bytes(std::string bytes) {
    for (size_t count = 1 + below(3); count > 0 && !bytes.empty(); --count) {
      const size_t at = below(bytes.size());
      const size_t length = 1 + below(8);
      switch (below(6)) {
        case 0:
          bytes[at] = static_cast<char>(below(256));
          break;
        case 1:
          bytes[at] = static_cast<char>(bytes[at] ^ 1 << below(8));
          break;
        case 2:
          bytes.insert(at, 1, static_cast<char>("0123456789-.eE[]{}\",:n\\\xff"[below(24)]));
          break;
        case 3:
          bytes.erase(at, length);
          break;
        case 4:
          bytes.insert(at, bytes.substr(below(bytes.size()), length));
          break;
        default:
          bytes.resize(below(10) == 0 ? at : bytes.size());
      }
    }
    return bytes;
  }

  /// Replaces, removes or repeats a part of a document, which stays well-formed.
  json change_value(json document) {
    json* place = &document;
    while (place->is_structured() && !place->empty() && below(5) != 0) {
      auto member = place->begin();
      std::advance(member, static_cast<std::ptrdiff_t>(below(place->size())));
      if (below(12) == 0) {
        place->erase(member);
        return document;
      }
      place = &*member;
    }
    const json replacements[] = {nullptr,
                                 true,
                                 -1,
                                 0,
                                 1,
                                 3,
                                 1e308,
                                 0.5,
                                 INT64_MIN,
                                 UINT64_MAX,
                                 4294967296,
                                 "",
                                 "a",
                                 "\u2581",
                                 std::string(300, 'x'),
                                 json::array(),
                                 {1, 2},
                                 {{"type", "Sequence"}},
                                 json::object(),
                                 document};
    *place = json(replacements[below(std::size(replacements))]);
    return document;
  }

 private:
  size_t below(size_t limit) { return random_() % limit; }

  std::mt19937 random_;
};

/// Runs `use`; any exception but llama::Error escapes and fails the test.
bool survives(const std::function<void()>& use) {
  try {
    use();
    return true;
  } catch (const llama::Error&) {
    return false;
  }
}

}  // namespace

TEST_CASE("a damaged safetensors file opens or is refused, and its tensors can be read") {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]},"c":{"dtype":"F16","shape":[1,1],"data_offsets":[32,34]}})";
  const std::string intact = safetensors_bytes(header, std::string(34, '\x3c'));
  const ScratchDirectory scratch;
  Vandal vandal(1);
  int opened = 0;
  for (int round = 0; round < 10000; ++round) {
    const std::filesystem::path path = scratch.write("model.safetensors", vandal.change_bytes(intact));
    opened += survives([&] {
      const llama::Checkpoint checkpoint(scratch.path());
      const llama::SafetensorsFile file(path);
      for (const llama::TensorView& tensor : file.tensors()) {
        const std::vector<float> values = llama::to_float(tensor);
        CHECK(static_cast<int64_t>(values.size()) == tensor.elements());
        CHECK(checkpoint.at(tensor.name).shape == tensor.shape);
      }
    });
  }
  // Damage to the data goes unnoticed, damage to the header rarely does.
  CHECK(opened > 100);
  CHECK(opened < 5000);
}

TEST_CASE("tensors that are written are read again, aligned to their elements") {
  const std::string bytes = "\x01\x02\x03\x04\x05\x06\x07";
  const auto data = [&bytes](size_t n) { return std::as_bytes(std::span(bytes)).first(n); };
  const llama::SafetensorsContent content{{{"a", "U8", {1, 3}, data(3)},
                                           {"b", "F32", {1}, data(4)},
                                           {"c", "BF16", {3, 1}, data(6)},
                                           {"d", "F32", {0, 5}, {}}},
                                          {{"who", "caf\u00e9 \"x\""}}};
  std::string written;
  llama::write_safetensors(content, [&written](std::span<const std::byte> piece) {
    written.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  });
  const llama::SafetensorsContent read = llama::read_safetensors(std::as_bytes(std::span(written)), "here");
  CHECK(read.metadata == content.metadata);
  REQUIRE(read.tensors.size() == content.tensors.size());
  for (size_t i = 0; i < read.tensors.size(); ++i) {
    CHECK(read.tensors[i].name == content.tensors[i].name);
    CHECK(read.tensors[i].dtype == content.tensors[i].dtype);
    CHECK(read.tensors[i].shape == content.tensors[i].shape);
    CHECK(std::ranges::equal(read.tensors[i].data, content.tensors[i].data));
    const auto offset = read.tensors[i].data.data() - std::as_bytes(std::span(written)).data();
    if (!read.tensors[i].data.empty()) CHECK(offset * 8 % llama::dtype_bits(read.tensors[i].dtype) == 0);
  }
}

TEST_CASE("a damaged safetensors header that is still JSON opens or is refused") {
  const json intact = {{"a", {{"dtype", "F32"}, {"shape", {2, 3}}, {"data_offsets", {0, 24}}}},
                       {"b", {{"dtype", "U8"}, {"shape", {8}}, {"data_offsets", {24, 32}}}}};
  const ScratchDirectory scratch;
  Vandal vandal(2);
  int opened = 0;
  for (int round = 0; round < 5000; ++round) {
    const std::string header = vandal.change_value(intact).dump();
    const auto path = scratch.write("a", safetensors_bytes(header, std::string(32, '\0')));
    opened += survives([&] {
      const llama::SafetensorsFile file(path);
      CHECK(file.tensors().size() <= 3);
    });
  }
  CHECK(opened < 2500);
}

TEST_CASE("a damaged config.json is read within its bounds or refused") {
  const json intact = json::parse(read_file(std::filesystem::path(demo_model()) / "config.json"));
  const ScratchDirectory scratch;
  Vandal vandal(3);
  int loaded = 0;
  for (int round = 0; round < 10000; ++round) {
    const bool by_value = round % 2 == 0;
    scratch.write("config.json", by_value ? vandal.change_value(intact).dump() : vandal.change_bytes(intact.dump()));
    loaded += survives([&] {
      const llama::ModelConfig config = llama::load_config(scratch.path());
      CHECK(config.hidden_size > 0);
      CHECK(config.q_heads % config.kv_heads == 0);
      CHECK(static_cast<int>(config.inv_freq.size()) * 2 == config.head_dim);
      for (int token : config.eos_tokens) CHECK((token >= 0 && token < config.vocab_size));
    });
  }
  CHECK(loaded > 100);
  CHECK(loaded < 9000);
}

TEST_CASE("a damaged config.json of any decoder is counted within its bounds or refused") {
  const std::filesystem::path fixtures = std::filesystem::path(source_tree()) / "tests" / "data" / "configs";
  const ScratchDirectory scratch;
  Vandal vandal(5);
  for (const char* name : {"deepseek-v3.json", "gemma-4-e2b.json", "kimi-linear-48b.json", "nemotron-h-8b.json"}) {
    CAPTURE(name);
    const json intact = json::parse(read_file(fixtures / name));
    int loaded = 0;
    for (int round = 0; round < 2000; ++round) {
      const bool by_value = round % 2 == 0;
      scratch.write("config.json", by_value ? vandal.change_value(intact).dump() : vandal.change_bytes(intact.dump()));
      loaded += survives([&] {
        const llama::ModelShape shape = llama::load_model_shape(scratch.path());
        CHECK(shape.parameters() > 0.0);
        CHECK(shape.parameters() <= 1e15);
        CHECK(shape.active_parameters() <= shape.parameters());
        for (size_t i = 0; i < shape.layers.size(); ++i) {
          const llama::LayerShape& layer = shape.layers[i];
          CHECK(layer.reads_layer < static_cast<int>(i));
          if (layer.attends()) CHECK(layer.q_heads % layer.kv_heads == 0);
        }
      });
    }
    CHECK(loaded > 20);
    CHECK(loaded < 1900);
  }
}

TEST_CASE("a damaged tokenizer.json is used or refused") {
  const std::filesystem::path fixtures = std::filesystem::path(source_tree()) / "tests" / "data" / "tokenizers";
  const ScratchDirectory scratch;
  Vandal vandal(4);
  for (const char* name : {"llama3.json", "metaspace.json"}) {
    CAPTURE(name);
    const json intact = json::parse(read_file(fixtures / name));
    int loaded = 0;
    for (int round = 0; round < 1500; ++round) {
      const bool by_value = round % 3 != 0;
      const std::string damaged =
          by_value ? vandal.change_value(vandal.change_value(intact)).dump() : vandal.change_bytes(intact.dump());
      loaded += survives([&] {
        const llama::Tokenizer tokenizer(scratch.write("tokenizer.json", damaged));
        const std::vector<int32_t> ids = tokenizer.encode("I'll see 12 caf\u00e9s \u4f60\n\n \xff end");
        for (int32_t id : ids) CHECK((id >= 0 && id < tokenizer.vocab_size()));
        tokenizer.decode(ids);
      });
    }
    CHECK(loaded > 10);
    CHECK(loaded < 1400);
  }
}

}  // namespace hostile_files_test
