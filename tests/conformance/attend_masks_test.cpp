#include "attention_error.h"

#include <doctest/doctest.h>

#include <string>

namespace conformance::attend_masks_test {
namespace {

const std::vector<Storage>& few_storages() {
  static const std::vector<Storage> storages = {Storage::uniform("fp16"),          Storage::uniform("int8"),
                                                Storage::uniform("int4"),          Storage::uniform("int3"),
                                                Storage::uniform("int2+hadamard"), {"int4", "int4", 32, 1, 2}};
  return storages;
}

}  // namespace

TEST_CASE("a sliding window hides what lies before it") {
  for (const int32_t window : {1, 7, 32, 33, 100, 1000}) {
    for (const int32_t queries : {1, 5, 70}) {
      check_attention({.name = "window " + std::to_string(window) + ", " + std::to_string(queries) + " queries",
                       .lengths = {300},
                       .query_counts = {queries},
                       .sliding_window = window},
                      few_storages());
    }
  }
}

TEST_CASE("a sliding window counts positions, not tokens") {
  for (const Positions positions : {Positions::kGaps, Positions::kAnyQueries}) {
    for (const int32_t window : {1, 20, 100}) {
      check_attention({.name = "window " + std::to_string(window) + " over gaps",
                       .lengths = {200, 65},
                       .query_counts = {40, 40},
                       .positions = positions,
                       .sliding_window = window},
                      few_storages());
    }
  }
}

TEST_CASE("positions may have gaps, and queries may be anywhere") {
  check_attention({.name = "gaps", .lengths = {300, 31}, .query_counts = {17, 2}, .positions = Positions::kGaps},
                  all_storages());
  check_attention({.name = "queries anywhere",
                   .lengths = {300, 31, 64},
                   .query_counts = {50, 20, 1},
                   .positions = Positions::kAnyQueries},
                  all_storages());
}

TEST_CASE("an empty sequence in a batch gives zeros") {
  check_attention({.name = "an empty sequence between two others",
                   .lengths = {40, 0, 70},
                   .query_counts = {3, 2, 1},
                   .positions = Positions::kAnyQueries},
                  few_storages());
}

TEST_CASE("the logit soft-cap") {
  for (const float cap : {0.5F, 5.0F, 50.0F}) {
    check_attention(
        {.name = "soft-cap " + std::to_string(cap), .lengths = {200}, .query_counts = {3}, .logit_softcap = cap},
        few_storages());
  }
  check_attention(masked_and_capped(), few_storages());
}

TEST_CASE("the caller's own scale") {
  for (const float scale : {0.001F, 0.0625F, 0.3F, 1.0F, -0.125F}) {
    check_attention({.name = "scale " + std::to_string(scale), .scale = scale, .lengths = {200}, .query_counts = {3}},
                    few_storages());
  }
}

}  // namespace conformance::attend_masks_test
