#include "llama/safetensors.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "llama/error.h"
#include "llama/weights.h"
#include "support/safetensors_bytes.h"
#include "support/scratch_directory.h"
#include "support/system.h"

namespace safetensors_test {
namespace {

using doctest::Contains;
using namespace std::string_literals;

std::string little_endian(const std::vector<uint16_t>& values) {
  std::string bytes;
  for (uint16_t value : values) {
    bytes += static_cast<char>(value & 0xff);
    bytes += static_cast<char>(value >> 8);
  }
  return bytes;
}

/// The IEEE 754 value of a binary16 pattern.
float half_value(unsigned bits) {
  const int exponent = static_cast<int>(bits >> 10 & 31);
  const auto fraction = static_cast<float>(bits & 1023);
  float magnitude = std::ldexp(1024.0f + fraction, exponent - 25);
  if (exponent == 0) magnitude = std::ldexp(fraction, -24);
  if (exponent == 31) magnitude = std::numeric_limits<float>::infinity();
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

}  // namespace

TEST_CASE("a safetensors file gives its tensors, shapes and metadata") {
  const ScratchDirectory scratch;
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,1],"data_offsets":[8,12]},)"
      R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"none":{"dtype":"F16","shape":[0,7],"data_offsets":[8,8]},)"
      R"("one":{"dtype":"U8","shape":[],"data_offsets":[12,13]}}   )";
  const float values[2] = {1.5f, -3.25e-20f};
  std::string data(8, '\0');
  std::memcpy(data.data(), values, 8);
  data += little_endian({0x3f80, 0xc0a0}) + "\x2a";
  llama::SafetensorsFile opened(scratch.write("a.safetensors", safetensors_bytes(header, data)));
  const llama::SafetensorsFile file = std::move(opened);

  REQUIRE(file.tensors().size() == 4);
  CHECK(file.metadata().at("format") == "pt");
  REQUIRE(file.find("a") != nullptr);
  CHECK(llama::to_float(*file.find("a")) == std::vector<float>{1.5f, -3.25e-20f});
  CHECK(llama::to_float(*file.find("b")) == std::vector<float>{1.0f, -5.0f});
  CHECK(file.find("b")->shape == std::vector<int64_t>{2, 1});
  CHECK(file.find("none")->elements() == 0);
  CHECK(llama::to_float(*file.find("none")).empty());
  CHECK(file.find("one")->elements() == 1);
  CHECK(file.find("one")->data[0] == std::byte{0x2a});
  CHECK(file.find("c") == nullptr);
  CHECK(file.find("") == nullptr);
  CHECK_THROWS_WITH_AS(llama::to_float(*file.find("one")), Contains("'one': dtype is U8"), llama::Error);
}

TEST_CASE("every half and bfloat16 pattern widens to the value that its format defines, at any alignment") {
  const ScratchDirectory scratch;
  std::vector<uint16_t> patterns(65536);
  for (size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<uint16_t>(i);
  for (const std::string padding : {"", " "}) {
    const std::string header = R"({"h":{"dtype":"F16","shape":[65536],"data_offsets":[0,131072]},)"
                               R"("b":{"dtype":"BF16","shape":[65536],"data_offsets":[131072,262144]}})" +
                               padding;
    const llama::SafetensorsFile file(
        scratch.write("h", safetensors_bytes(header, little_endian(patterns) + little_endian(patterns))));
    const std::vector<float> halves = llama::to_float(*file.find("h"));
    const std::vector<float> brains = llama::to_float(*file.find("b"));
    int wrong = 0;
    for (unsigned i = 0; i < 65536; ++i) {
      const bool nan = (i & 0x7c00) == 0x7c00 && (i & 0x3ff) != 0;
      const float half = half_value(i);
      const bool same = halves[i] == half && std::signbit(halves[i]) == std::signbit(half);
      if (nan ? !std::isnan(halves[i]) : !same) ++wrong;
      if (std::bit_cast<uint32_t>(brains[i]) != i << 16) ++wrong;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("fields that the format does not name are skipped, whatever they hold, and shapes may be of any rank") {
  const ScratchDirectory scratch;
  const std::string header =
      R"({"w":{"more":{"dtype":[1,-2.5,null,{"shape":true}]},"dtype":"I64","x":"y","shape":[1,1,1,1,1,1,1,1,1,1],)"
      R"("data_offsets":[0,8],"last":[[[]]]}})";
  const llama::SafetensorsFile file(scratch.write("w", safetensors_bytes(header, std::string(8, '\1'))));
  REQUIRE(file.find("w") != nullptr);
  CHECK(file.find("w")->dtype == "I64");
  CHECK(file.find("w")->shape.size() == 10);
  const std::string deep = R"({"w":{"x":)" + std::string(100000, '[') + std::string(100000, ']') + "}}";
  CHECK_THROWS_WITH_AS(llama::SafetensorsFile{scratch.write("deep", safetensors_bytes(deep, ""))},
                       Contains("nested deeper"), llama::Error);
}

TEST_CASE("a malformed safetensors file is refused with the reason") {
  const ScratchDirectory scratch;
  const auto refuses = [&](const std::string& content, const char* reason) {
    const std::filesystem::path path = scratch.write("bad.safetensors", content);
    CHECK_THROWS_WITH_AS(llama::SafetensorsFile{path}, Contains(reason), llama::Error);
    CHECK_THROWS_WITH_AS(llama::SafetensorsFile{path}, Contains("bad.safetensors"), llama::Error);
  };
  const auto refuses_header = [&](const std::string& header, const char* reason) {
    CAPTURE(header);
    refuses(safetensors_bytes(header, std::string(8, '\1')), reason);
  };
  const auto refuses_tensor = [&](const std::string& entry, const char* reason) {
    refuses_header(R"({"w":)" + entry + "}", reason);
  };

  SUBCASE("its frame") {
    refuses("", "0 bytes, too short");
    refuses("\1\0\0\0\0\0\0"s, "7 bytes, too short");
    refuses(safetensors_bytes("{}", "", 3), "header length is 3, but only 2 bytes follow");
    refuses(safetensors_bytes("{}", "", 100'000'001), "header length is 100000001, the limit");
    refuses(safetensors_bytes("{}", "", UINT64_MAX), "header length is 18446744073709551615, the limit");
    refuses(safetensors_bytes("", ""), "does not begin with '{'");
    refuses(safetensors_bytes(" {}", ""), "does not begin with '{'");
    refuses(safetensors_bytes("[]", ""), "does not begin with '{'");
    refuses(safetensors_bytes("{}", "x"), "end at byte 0 of 1 bytes");
    refuses(safetensors_bytes("{}x", ""), "not valid JSON");
  }
  SUBCASE("its header") {
    refuses_header("{", "not valid JSON");
    refuses_header("{\"\xff\":1}", "not valid JSON");
    refuses_header(R"({"w":1e999})", "not valid JSON");
    refuses_header("{\"w\":" + std::string(100000, '[') + std::string(100000, ']') + "}", "'w' is or holds a list");
    refuses_header(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                   R"("w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
                   "'w' occurs twice");
    refuses_header(R"({"w":{"dtype":"F32","dtype":"F16","shape":[2],"data_offsets":[0,8]}})",
                   "tensor 'w': dtype occurs twice");
    refuses_header(R"({"__metadata__":[]})", "'__metadata__' is or holds a list");
    refuses_header(R"({"__metadata__":{"a":1}})", "'a' is or holds a number");
  }
  SUBCASE("a tensor's fields") {
    refuses_tensor("3", "'w' is or holds a number");
    refuses_tensor(R"({"shape":[2],"data_offsets":[0,8]})", "tensor 'w': dtype is missing");
    refuses_tensor(R"({"dtype":"F32","data_offsets":[0,8]})", "shape is missing");
    refuses_tensor(R"({"dtype":"F32","shape":[2]})", "data_offsets is missing");
    refuses_tensor(R"({"dtype":"F31","shape":[2],"data_offsets":[0,8]})",
                   "dtype is 'F31', which is not a dtype of the format");
    refuses_tensor(R"({"dtype":32,"shape":[2],"data_offsets":[0,8]})", "tensor 'w': dtype is or holds a number");
  }
  SUBCASE("a tensor's shape") {
    refuses_tensor(R"({"dtype":"F32","shape":2,"data_offsets":[0,8]})", "shape is or holds a number");
    refuses_tensor(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})", "shape is or holds a negative number");
    refuses_tensor(R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})", "shape is or holds a fraction");
    refuses_tensor(R"({"dtype":"F32","shape":["2"],"data_offsets":[0,8]})", "shape is or holds a string");
    refuses_tensor(R"({"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,8]})", "from 0 to 2^63 - 1");
    refuses_tensor(R"({"dtype":"F32","shape":[9223372036854775807],"data_offsets":[0,8]})", "more than 2^63 bits");
    refuses_tensor(R"({"dtype":"F32","shape":[4294967296,4294967296,2],"data_offsets":[0,8]})", "more than 2^63 bits");
    refuses_tensor(R"({"dtype":"F4","shape":[3],"data_offsets":[0,2]})", "does not fill whole bytes");
  }
  SUBCASE("a tensor's place") {
    refuses_tensor(R"({"dtype":"F32","shape":[2],"data_offsets":[0]})", "data_offsets are 1, must be two");
    refuses_tensor(R"({"dtype":"F32","shape":[2],"data_offsets":{"a":0}})", "data_offsets is or holds an object");
    refuses_tensor(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8.0]})", "data_offsets is or holds a fraction");
    refuses_tensor(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})", "data_offsets are [8, 0], in 8 bytes");
    refuses_tensor(R"({"dtype":"F32","shape":[2],"data_offsets":[-8,0]})",
                   "data_offsets is or holds a negative number");
    refuses_tensor(R"({"dtype":"F32","shape":[2],"data_offsets":[1,9]})",
                   "data_offsets are [1, 9], in 8 bytes of data");
    refuses_tensor(R"({"dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551615]})",
                   "data_offsets are [0, 18446744073709551615]");
    refuses_tensor(R"({"dtype":"F32","shape":[1],"data_offsets":[0,8]})", "need 4 bytes");
    refuses_tensor(R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})", "a hole");
    refuses_tensor(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})", "end at byte 4 of 8 bytes");
    refuses_header(R"({"v":{"dtype":"U8","shape":[5],"data_offsets":[0,5]},)"
                   R"("w":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
                   "tensor 'w': data_offsets begin at 4, but the tensor before it ends at 5: the file has an overlap");
    refuses_header(R"({"v":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                   R"("w":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
                   "a hole");
    refuses_header(R"({"v":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},)"
                   R"("w":{"dtype":"U8","shape":[0],"data_offsets":[4,4]}})",
                   "an overlap");
  }
}

TEST_CASE("a path that is no regular file is refused") {
  const ScratchDirectory scratch;
  CHECK_THROWS_WITH_AS(llama::SafetensorsFile{scratch.path()}, Contains("not a regular file"), llama::Error);
  CHECK_THROWS_WITH_AS(llama::SafetensorsFile{scratch.path() / "absent"}, Contains(kvq_test::kNoFile), llama::Error);
  CHECK_THROWS_WITH_AS(llama::Checkpoint{scratch.path()}, Contains("found neither"), llama::Error);
}

TEST_CASE("a checkpoint finds its tensors in one file or in the shards of an index") {
  const ScratchDirectory scratch;
  const auto shard = [](const std::string& name, char value) {
    return safetensors_bytes(R"({")" + name + R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                             std::string(1, value));
  };
  const auto write_index = [&](const std::string& weight_map) {
    scratch.write("model.safetensors.index.json", R"({"metadata":{"total_size":2},"weight_map":)" + weight_map + "}");
  };
  scratch.write("model-1.safetensors", shard("a", '\1'));
  scratch.write("model-2.safetensors", shard("b", '\2'));

  SUBCASE("shards") {
    write_index(R"({"a":"model-1.safetensors","b":"model-2.safetensors"})");
    const llama::Checkpoint checkpoint(scratch.path());
    CHECK(checkpoint.at("a").data[0] == std::byte{1});
    CHECK(checkpoint.at("b").data[0] == std::byte{2});
    CHECK(checkpoint.find("c") == nullptr);
    CHECK_THROWS_WITH_AS(checkpoint.at("c"), Contains("tensor 'c' is missing"), llama::Error);
  }
  SUBCASE("one file") {
    scratch.write("model.safetensors", shard("c", '\3'));
    CHECK(llama::Checkpoint(scratch.path()).at("c").data[0] == std::byte{3});
  }
  SUBCASE("a bad index") {
    const auto refuses = [&](const std::string& weight_map, const char* reason) {
      write_index(weight_map);
      CHECK_THROWS_WITH_AS(llama::Checkpoint{scratch.path()}, Contains(reason), llama::Error);
    };
    const std::string parent = "../" + scratch.path().filename().string() + "/model-1.safetensors";
    const std::string absolute = (scratch.path() / "model-1.safetensors").generic_string();
    refuses(R"({"a":")" + parent + R"("})", "is not the name of a file in the model directory");
    refuses(R"({"a":")" + absolute + R"("})", "is not the name of a file in the model directory");
    refuses(R"({"a":".."})", "is not the name of a file in the model directory");
    refuses(R"({"a":""})", "is not the name of a file in the model directory");
    refuses(R"({"a":"model-1.safetensors\u0000"})", "is not the name of a file in the model directory");
    refuses(R"({"a":"model-3.safetensors"})", "model-3.safetensors: cannot open");
    refuses(R"({"a":"model-2.safetensors"})", "model-2.safetensors: tensor 'a' is missing");
    refuses(R"({"a":7})", "a is 7, expected the name of a file");
    refuses("[]", "weight_map: expected an object");
    refuses("null", "weight_map is missing");
  }
}

}  // namespace safetensors_test
