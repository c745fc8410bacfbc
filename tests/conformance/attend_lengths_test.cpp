#include "attention_error.h"
#include "support/build.h"

#include <doctest/doctest.h>

#include <string>

namespace conformance::attend_lengths_test {
namespace {

const int32_t kPageBorders[] = {1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129};
const int32_t kSplitBorders[] = {1000, 2047, 2048, 2049, 4100};

}  // namespace

TEST_CASE("attention is exact up to rounding at every length around page borders") {
  for (const int32_t n : kPageBorders) {
    Scenario scenario{.name = "length " + std::to_string(n), .lengths = {n}};
    check_attention(scenario, all_storages());
  }
}

TEST_CASE("attention is exact up to rounding at lengths around split borders") {
  for (const int32_t n : kSplitBorders) {
    if (kvq_test::kSmallRun && n != 1000 && n != 2049) continue;
    Scenario scenario{.name = "length " + std::to_string(n), .lengths = {n}};
    check_attention(scenario, all_storages());
  }
}

TEST_CASE("several queries see the tokens up to their own") {
  for (const int32_t queries : {2, 5, 32, 100}) {
    Scenario scenario{.name = std::to_string(queries) + " queries of 500 tokens",
                      .head_dim = 128,
                      .lengths = {kvq_test::full_or_small(500, 150)},
                      .query_counts = {queries}};
    check_attention(scenario, all_storages());
  }
}

TEST_CASE("a prompt attends to itself") {
  for (const int32_t n : {1, 33, 64, 160}) {
    Scenario scenario{.name = "prompt of " + std::to_string(n), .lengths = {n}, .query_counts = {n}};
    check_attention(scenario, all_storages());
  }
}

TEST_CASE("sequences of different length in one batch do not mix") {
  Scenario scenario{.name = "six sequences", .lengths = {1, 33, 64, 500, 31, 97}, .query_counts = {1, 1, 1, 1, 1, 1}};
  check_attention(scenario, all_storages());
  scenario.name = "six sequences, several queries";
  scenario.query_counts = {1, 5, 64, 2, 31, 1};
  check_attention(scenario, all_storages());
}

TEST_CASE("a long sequence among many short ones") {
  Scenario scenario{.name = "one long, many short", .lengths = {3000}, .query_counts = {1}};
  for (int32_t n = 1; n < 40; n += 3) {
    scenario.lengths.push_back(n);
    scenario.query_counts.push_back(1);
  }
  check_attention(scenario, {Storage::uniform("fp16"), Storage::uniform("int4"), Storage::uniform("int2+hadamard")});
}

}  // namespace conformance::attend_lengths_test
