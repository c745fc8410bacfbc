// Structs that have grown since their first release: conversion of an older caller's shorter struct and of a newer
// caller's longer one.
#include "api/boundary.h"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace struct_sizes_test {
namespace {

struct FirstOptions {
  uint32_t struct_size;
  int32_t threads;
};

struct SecondOptions {
  uint32_t struct_size;
  int32_t threads;
  double share;
  int32_t depth;
  int32_t reserved;
};

}  // namespace
}  // namespace struct_sizes_test

template <>
inline constexpr size_t kvq::api::kFirstSize<struct_sizes_test::SecondOptions> =
    sizeof(struct_sizes_test::FirstOptions);

namespace struct_sizes_test {
namespace {

/// A struct from a caller built with another header: exactly its bytes, so that memory checkers detect access beyond
/// them.
template <typename T>
class Caller {
 public:
  explicit Caller(size_t size, std::byte fill = std::byte{0x77}) : bytes_(size, fill) {
    const auto claimed = static_cast<uint32_t>(size);
    std::memcpy(bytes_.data(), &claimed, sizeof(claimed));
  }
  template <typename U>
  explicit Caller(const U& given) : bytes_(sizeof(U)) {
    std::memcpy(bytes_.data(), &given, sizeof(given));
  }

  T* pointer() { return reinterpret_cast<T*>(bytes_.data()); }
  std::vector<std::byte>& bytes() { return bytes_; }
  template <typename U>
  U as() const {
    U result;
    std::memcpy(&result, bytes_.data(), sizeof(result));
    return result;
  }

 private:
  std::vector<std::byte> bytes_;
};

constexpr SecondOptions kDefaults{.struct_size = 0, .threads = 4, .share = 0.25, .depth = 9, .reserved = 0};

struct Refusal {
  kvq_status status = KVQ_OK;
  std::string message;
};

Refusal refusal_of(const SecondOptions* given) {
  try {
    kvq::api::read_struct(given, kDefaults, "options");
  } catch (const kvq::Error& error) {
    return {error.status(), error.what()};
  }
  return {};
}

}  // namespace

TEST_CASE("an older caller's options get the defaults of the fields that it does not know") {
  Caller<SecondOptions> older(FirstOptions{.struct_size = sizeof(FirstOptions), .threads = 2});
  const SecondOptions read = kvq::api::read_struct(older.pointer(), kDefaults, "options");
  CHECK_EQ(read.threads, 2);
  CHECK_EQ(read.share, 0.25);
  CHECK_EQ(read.depth, 9);
}

TEST_CASE("a caller of a release between knows some of the fields that were added") {
  const SecondOptions given{
      .struct_size = offsetof(SecondOptions, depth), .threads = 2, .share = 0.5, .depth = 1, .reserved = 0};
  Caller<SecondOptions> between(given);
  between.bytes().resize(given.struct_size);
  const SecondOptions read = kvq::api::read_struct(between.pointer(), kDefaults, "options");
  CHECK_EQ(read.threads, 2);
  CHECK_EQ(read.share, 0.5);
  CHECK_EQ(read.depth, 9);
}

TEST_CASE("options that were read are of this library's size and can be handed on") {
  for (const size_t size : {sizeof(FirstOptions), sizeof(SecondOptions), sizeof(SecondOptions) + 100}) {
    CAPTURE(size);
    Caller<SecondOptions> caller(size, std::byte{0});
    CHECK_EQ(kvq::api::read_struct(caller.pointer(), kDefaults, "options").struct_size, sizeof(SecondOptions));
  }
}

TEST_CASE("options smaller than in the first release, or larger than any will be, are refused with their size") {
  for (const uint32_t size : {0U, 3U, 7U, 4097U, UINT32_MAX}) {
    CAPTURE(size);
    Caller<SecondOptions> caller(sizeof(uint32_t));  // only the size is read
    std::memcpy(caller.bytes().data(), &size, sizeof(size));
    const Refusal refusal = refusal_of(caller.pointer());
    CHECK_EQ(refusal.status, KVQ_E_ARGUMENT);
    CHECK_NE(refusal.message.find("options->struct_size is " + std::to_string(size) + ","), std::string::npos);
  }
}

TEST_CASE("of a newer caller's options the rest must be 0, to the last byte") {
  Caller<SecondOptions> newer(sizeof(SecondOptions) + 40, std::byte{0});
  CHECK_EQ(refusal_of(newer.pointer()).status, KVQ_OK);
  for (const size_t set : {sizeof(SecondOptions), sizeof(SecondOptions) + 39}) {
    newer.bytes()[set] = std::byte{0x80};
    const Refusal refusal = refusal_of(newer.pointer());
    CHECK_EQ(refusal.status, KVQ_E_UNSUPPORTED);
    CHECK_NE(refusal.message.find("byte " + std::to_string(set) + " is not 0"), std::string::npos);
    newer.bytes()[set] = std::byte{0};
  }
}

TEST_CASE("an older caller's struct is initialized and described as far as it goes") {
  Caller<SecondOptions> initialized(sizeof(FirstOptions));
  kvq::api::init_struct(initialized.pointer(), sizeof(FirstOptions), kDefaults);
  CHECK_EQ(initialized.as<FirstOptions>().struct_size, sizeof(FirstOptions));
  CHECK_EQ(initialized.as<FirstOptions>().threads, 4);

  Caller<SecondOptions> described(sizeof(FirstOptions));
  kvq::api::write_struct(described.pointer(), kDefaults, "info");
  CHECK_EQ(described.as<FirstOptions>().struct_size, sizeof(FirstOptions));
  CHECK_EQ(described.as<FirstOptions>().threads, 4);
}

TEST_CASE("what this library does not know of a newer caller's struct is initialized and described as 0") {
  constexpr size_t kSize = sizeof(SecondOptions) + 24;
  Caller<SecondOptions> initialized(kSize);
  Caller<SecondOptions> described(kSize);
  kvq::api::init_struct(initialized.pointer(), kSize, kDefaults);
  kvq::api::write_struct(described.pointer(), kDefaults, "info");
  for (const Caller<SecondOptions>* each : {&initialized, &described}) {
    CHECK_EQ(each->as<SecondOptions>().struct_size, kSize);
    CHECK_EQ(each->as<SecondOptions>().depth, 9);
    struct Newer {
      SecondOptions known;
      std::byte rest[24];
    };
    for (const std::byte rest : each->as<Newer>().rest) CHECK_EQ(rest, std::byte{0});
  }
}

}  // namespace struct_sizes_test
