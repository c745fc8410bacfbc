#include "attention_error.h"
#include "support/build.h"

#include <doctest/doctest.h>

#include <string>

namespace conformance::attend_shapes_test {
namespace {

constexpr int32_t kHeadDims[] = {8, 24, 64, 80, 96, 120, 128, 192, 200, 256};
constexpr int32_t kGroups[] = {1, 2, 4, 7, 16};

}  // namespace

TEST_CASE("every head size and every number of query heads per key head") {
  for (const int32_t head_dim : kHeadDims) {
    for (const int32_t group : kGroups) {
      const int32_t kv_heads = group == 16 ? 1 : 2;
      Scenario scenario{.name = "head_dim " + std::to_string(head_dim) + ", group " + std::to_string(group),
                        .q_heads = group * kv_heads,
                        .kv_heads = kv_heads,
                        .head_dim = head_dim,
                        .lengths = {161, 70},
                        .query_counts = {1, 3}};
      const bool thorough = !kvq_test::kSmallRun || group == 7 || head_dim == 80;
      check_attention(scenario, thorough ? all_storages()
                                         : std::vector<Storage>{Storage::uniform("fp16"), Storage::uniform("int4")});
    }
  }
}

TEST_CASE("every head size that is a multiple of eight") {
  for (int32_t head_dim = 8; head_dim <= 256; head_dim += 8) {
    Scenario scenario{.name = "head_dim " + std::to_string(head_dim), .head_dim = head_dim, .lengths = {75}};
    check_attention(scenario, {Storage::uniform("fp16"), Storage::uniform("int8"), Storage::uniform("int4+hadamard"),
                               Storage::uniform("int3"), Storage::uniform("int2+hadamard")});
  }
}

TEST_CASE("many key heads, and one key head for many query heads") {
  check_attention({.name = "32 key heads", .q_heads = 32, .kv_heads = 32, .head_dim = 32, .lengths = {100}},
                  all_storages());
  check_attention({.name = "71 query heads on one", .q_heads = 71, .kv_heads = 1, .head_dim = 64, .lengths = {100}},
                  all_storages());
  check_attention({.name = "one head", .q_heads = 1, .kv_heads = 1, .head_dim = 128, .lengths = {300}}, all_storages());
}

TEST_CASE("every width of a value group, also where it does not divide the head") {
  for (const int32_t head_dim : {24, 64, 80, 120, 128, 192, 200, 256}) {
    for (const int group : {32, 64, 128}) {
      std::vector<Storage> storages;
      for (const char* format : {"int8", "int4", "int3", "int2", "int4+hadamard"}) {
        storages.push_back({format, format, group, 0, 1});
      }
      check_attention({.name = "head_dim " + std::to_string(head_dim), .head_dim = head_dim, .lengths = {130}},
                      storages);
    }
  }
}

TEST_CASE("first and newest pages that stay in FP16 attend with the others") {
  for (const int sink : {0, 1, 3}) {
    for (const int recent : {1, 2, 4}) {
      std::vector<Storage> storages;
      for (const char* format : {"int8", "int4", "int2+hadamard"}) {
        storages.push_back({format, format, 32, sink, recent});
      }
      for (const int32_t n : {33, 100, 256, 257}) {
        check_attention({.name = "sink " + std::to_string(sink) + ", recent " + std::to_string(recent) + ", " +
                                 std::to_string(n) + " tokens",
                         .lengths = {n}},
                        storages);
      }
    }
  }
}

}  // namespace conformance::attend_shapes_test
