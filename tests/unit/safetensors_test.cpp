#include "io/safetensors.h"

#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

#include "core/error.h"
#include "support/allocator.h"

namespace safetensors_test {
namespace {

using kvq::io::SafetensorsFile;
using kvq::io::SafetensorsWriter;
using kvq_test::test_allocator;

std::vector<std::byte> file_of(const std::string& header, size_t data_bytes) {
  std::vector<std::byte> bytes(8 + header.size() + data_bytes);
  const uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, 8);
  std::memcpy(bytes.data() + 8, header.data(), header.size());
  return bytes;
}

/// The error of reading a file; "" if none.
std::string complaint(const std::vector<std::byte>& bytes) {
  try {
    const SafetensorsFile file(test_allocator(), bytes);
    return "";
  } catch (const kvq::Error& error) {
    CHECK(error.status() == KVQ_E_FORMAT);
    return error.what();
  }
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

struct BadHeader {
  std::string header;
  const char* reason;
};

}  // namespace

TEST_CASE("a file names its tensors, widens their numbers and keeps its metadata") {
  const std::string header = R"({"b":)" + entry("F32", "[2]", "[0,8]") + R"(,"__metadata__":{"k":"v \u00e9"},"a":)" +
                             entry("BF16", "[1,3]", "[8,14]") + R"(,"half":)" + entry("F16", "[]", "[14,16]") +
                             R"(,"none":)" + entry("F16", "[4,0]", "[16,16]") + "}  ";
  std::vector<std::byte> bytes = file_of(header, 16);
  const float b[2] = {1.5F, -2.0F};
  const uint16_t a[3] = {0x3F80, 0xC000, 0x0000};  // 1, −2, 0 as bfloat16
  const uint16_t half = 0x3C00;                    // 1
  std::byte* data = bytes.data() + 8 + header.size();
  std::memcpy(data, b, 8);
  std::memcpy(data + 8, a, 6);
  std::memcpy(data + 14, &half, 2);

  const SafetensorsFile file(test_allocator(), bytes);
  REQUIRE(file.tensors().size() == 4);
  CHECK(file.tensors()[0].name == "a");
  CHECK(file.tensors()[3].name == "none");
  std::vector<float> numbers(3);
  file.find("a")->read(numbers);
  CHECK(numbers == std::vector<float>{1.0F, -2.0F, 0.0F});
  CHECK(file.find("a")->shape == kvq::TensorShape{1, 3});
  CHECK(file.find("a")->dtype == KVQ_BF16);
  numbers.resize(2);
  file.find("b")->read(numbers);
  CHECK(numbers == std::vector<float>{1.5F, -2.0F});
  numbers.resize(1);
  file.find("half")->read(numbers);
  CHECK(numbers == std::vector<float>{1.0F});
  CHECK(file.find("none")->shape.elements() == 0);
  CHECK(file.find("c") == nullptr);
  REQUIRE(file.metadata("k") != nullptr);
  CHECK(*file.metadata("k") == "v \xc3\xa9");
  CHECK(file.metadata("q") == nullptr);
}

TEST_CASE("a header that contradicts the format, itself or the file's size is refused with the tensor and the field") {
  const std::string good = entry("F32", "[2]", "[0,8]");
  for (const auto& [header, reason] : std::vector<BadHeader>{
           {"", "header does not begin"},
           {"[]", "header does not begin"},
           {" {}", "header does not begin"},
           {"{", "byte"},
           {"{}}", "byte"},
           {"{\"a\":" + good, "byte"},
           {"{\"\xff\":" + good + "}", "byte"},
           {R"({"a":[]})", "'a' is or holds a list"},
           {R"({"a":1})", "'a' is or holds a number"},
           {R"({"a":null})", "'a' is or holds null"},
           {R"({"__metadata__":{"k":1}})", "'k' is or holds a number"},
           {R"({"__metadata__":{"k":{}}})", "'k' is or holds an object"},
           {R"({"__metadata__":{},"__metadata__":{},"a":)" + good + "}", "__metadata__ occurs twice"},
           {R"({"__metadata__":{"k":"1","k":"2"},"a":)" + good + "}", "metadata 'k' occurs twice"},
           {R"({"a":)" + good + R"(,"a":)" + good + "}", "tensor 'a' occurs twice"},
           {R"({"a":{"dtype":"F32","shape":[2]}})", "tensor 'a': data_offsets is missing"},
           {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}})", "unknown field 'x'"},
           {R"({"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "dtype occurs twice"},
           {R"({"a":{"dtype":[],"shape":[2],"data_offsets":[0,8]}})", "dtype is or holds a list"},
           {R"({"a":)" + entry("I64", "[1]", "[0,8]") + "}", "dtype is 'I64'"},
           {R"({"a":)" + entry("F32", "2", "[0,8]") + "}", "shape is or holds a number"},
           {R"({"a":)" + entry("F32", "[2.0]", "[0,8]") + "}", "shape is or holds a fraction"},
           {R"({"a":)" + entry("F32", "[-2]", "[0,8]") + "}", "shape is or holds a negative number"},
           {R"({"a":)" + entry("F32", "[[2]]", "[0,8]") + "}", "shape is or holds a list"},
           {R"({"a":)" + entry("F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]") + "}", "more than 8"},
           {R"({"a":)" + entry("F32", "[18446744073709551615]", "[0,8]") + "}", "18446744073709551615"},
           {R"({"a":)" + entry("F32", "[4294967296,4294967296]", "[0,8]") + "}", "shape overflows"},
           {R"({"a":)" + entry("F32", "[3]", "[0,8]") + "}", "need 12"},
           {R"({"a":)" + entry("F32", "[2]", "[0,8,8]") + "}", "data_offsets is or holds a number"},
           {R"({"a":)" + entry("F32", "[2]", "[0]") + "}", "data_offsets"},
           {R"({"a":)" + entry("F32", "[2]", "[8,0]") + "}", "data_offsets are [8, 0]"},
           {R"({"a":)" + entry("F32", "[2]", "[8,16]") + "}", "in 8 bytes of data"},
           {R"({"a":)" + entry("F32", "[1]", "[0,4]") + R"(,"b":)" + entry("F32", "[1]", "[2,6]") + "}", "begin at 2"},
           {R"({"a":)" + entry("F32", "[1]", "[4,8]") + "}", "begin at 4"},
           {R"({"a":)" + entry("F32", "[1]", "[0,4]") + "}", "end at byte 4 of 8"},
       }) {
    const std::string& tried = header;  // Clang's lambdas cannot capture a binding
    CAPTURE(tried);
    const std::string found = complaint(file_of(header, 8));
    CHECK_MESSAGE(found.find(reason) != std::string::npos, found);
  }
  CHECK(complaint(file_of("{\"a\":" + good + "}", 8)).empty());
}

TEST_CASE("a header length beyond the file is refused") {
  std::vector<std::byte> bytes = file_of("{}", 0);
  CHECK(complaint(bytes).empty());
  for (const uint64_t length : {uint64_t{0}, uint64_t{3}, uint64_t{1} << 40U, UINT64_MAX}) {
    std::memcpy(bytes.data(), &length, 8);
    CHECK(complaint(bytes).find("header") != std::string::npos);
  }
  bytes.resize(7);
  CHECK(complaint(bytes).find("too short") != std::string::npos);
  CHECK(complaint({}).find("too short") != std::string::npos);
}

TEST_CASE("a header needs memory in proportion to its length, however deep or long its parts pretend to be") {
  const size_t length = 1 << 20;
  for (const std::string& header :
       {"{\"a\":" + std::string(length, '['), "{\"a\":" + std::string(length, '{'),
        R"({"a":{"dtype":"F32","shape":[)" + std::string(length, '1') + "]}}", "{\"" + std::string(length, 'x')}) {
    kvq::Allocator allocator(kvq::AllocatorHooks{}, 8 * length);
    const std::vector<std::byte> bytes = file_of(header, 0);
    CHECK_THROWS_AS(SafetensorsFile(allocator, bytes), kvq::Error);
    CHECK(allocator.bytes() == 0);
  }
}

TEST_CASE("a header is JSON in ascending order of names, with all control characters escaped") {
  const std::vector<std::byte> bytes(6);
  SafetensorsWriter writer(test_allocator());
  writer.add_raw("a", kvq::io::kU8, {2}, std::span(bytes).first(2));
  writer.add_raw("A", KVQ_F16, {1, 2}, std::span(bytes).first(4));
  writer.add_raw("none", KVQ_F16, {}, {});
  writer.add_metadata("z", "\"\\/\b\f\n\r\t");
  writer.add_metadata("k", "\x01\x1f\x7f\xc3\xa9");
  writer.finish();
  std::vector<std::byte> file(writer.size());
  writer.write(file);
  const std::string expected =
      "{\"A\":{\"data_offsets\":[0,4],\"dtype\":\"F16\",\"shape\":[1,2]},"
      "\"__metadata__\":{\"k\":\"\\u0001\\u001f\x7f\xc3\xa9\",\"z\":\"\\\"\\\\/\\b\\f\\n\\r\\t\"},"
      "\"a\":{\"data_offsets\":[4,6],\"dtype\":\"U8\",\"shape\":[2]},"
      "\"none\":{\"data_offsets\":[4,4],\"dtype\":\"F16\",\"shape\":[]}}";
  REQUIRE_GT(file.size(), 8 + expected.size());
  CHECK(std::string(reinterpret_cast<const char*>(file.data()) + 8, expected.size()) == expected);
}

TEST_CASE("what is written is read back, aligned, and the same whatever the order of adding") {
  const std::vector<float> wide{1.0F, 1e-30F, -3.25F};
  const std::vector<float> narrow{0.5F, 65504.0F, 1.0F / 3.0F, 0.0F};
  const auto write = [&](bool reverse) {
    SafetensorsWriter writer(test_allocator());
    if (reverse) writer.add_tensor("b", KVQ_F32, {3}, wide);
    writer.add_tensor("a", KVQ_F16, {2, 2}, narrow);
    if (!reverse) writer.add_tensor("b", KVQ_F32, {3}, wide);
    writer.add_metadata("quote", "\"\\\n\xc3\xa9");
    writer.finish();
    std::vector<std::byte> bytes(writer.size());
    writer.write(bytes);
    return bytes;
  };
  const std::vector<std::byte> bytes = write(false);
  CHECK(bytes == write(true));
  const SafetensorsFile file(test_allocator(), bytes);
  for (const auto& tensor : file.tensors()) CHECK((tensor.data.data() - bytes.data()) % 4 == 0);
  std::vector<float> numbers(3);
  file.find("b")->read(numbers);
  CHECK(numbers == wide);
  numbers.resize(4);
  file.find("a")->read(numbers);
  CHECK(numbers[1] == 65504.0F);
  CHECK(numbers[2] == doctest::Approx(1.0 / 3.0).epsilon(0.0005));
  CHECK(*file.metadata("quote") == "\"\\\n\xc3\xa9");

  SafetensorsWriter broken(test_allocator());
  broken.add_metadata("k", "\xff");
  CHECK_THROWS_AS(broken.finish(), kvq::Error);
}

}  // namespace safetensors_test
