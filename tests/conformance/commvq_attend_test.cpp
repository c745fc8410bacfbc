// Attention over pages stored with codebooks, against float64 over the reference decoder's output.
#include "attention_error.h"
#include "support/build.h"

#include <doctest/doctest.h>

#include <string>

namespace conformance::commvq_attend_test {

using kvq_test::Codes;

namespace {

Storage coded(const Codes& codes) { return {"commvq", "commvq", 32, 0, 1, codes}; }

std::vector<Storage> few_storages() { return every_way({coded_storages()[0], coded_storages()[1]}); }
std::vector<Storage> all_coded() { return every_way(coded_storages()); }

}  // namespace

TEST_CASE("codes: every head size, pairing and number of query heads" * doctest::test_suite("long")) {
  for (const int32_t head_dim : {64, 80, 96, 128}) {
    for (const kvq_rope rope : {KVQ_ROPE_HALF, KVQ_ROPE_INTERLEAVED}) {
      for (const int32_t group : {1, 3, 4}) {
        if (kvq_test::kSmallRun && (group == 3) != (rope == KVQ_ROPE_INTERLEAVED)) continue;
        check_attention({.name = "head_dim " + std::to_string(head_dim) + ", group " + std::to_string(group) +
                                 (rope == KVQ_ROPE_HALF ? ", half" : ", interleaved"),
                         .q_heads = 2 * group,
                         .head_dim = head_dim,
                         .rope = rope,
                         .lengths = {161, 70},
                         .query_counts = {1, 3}},
                        all_coded());
      }
    }
  }
}

TEST_CASE("codes: the smallest head and the largest") {
  for (const int32_t head_dim : {8, 24, 256}) {
    check_attention({.name = "head_dim " + std::to_string(head_dim), .head_dim = head_dim, .lengths = {100}},
                    few_storages());
  }
}

TEST_CASE("codes: every number of codes, also with several groups in a head") {
  for (const int32_t codes : {2, 4, 8, 16, 32, 64, 128, 256}) {
    for (const int32_t group : {0, 8, 16}) {
      const int32_t stages = codes > 64 ? 1 : 2;
      for (const kvq_rope rope : {KVQ_ROPE_HALF, KVQ_ROPE_INTERLEAVED}) {
        if (kvq_test::kSmallRun && (group == 8) != (rope == KVQ_ROPE_INTERLEAVED)) continue;
        check_attention({.name = std::to_string(codes) + " codes", .rope = rope, .lengths = {75}},
                        every_way({coded({.stages = stages, .codes = codes, .group = group, .bits = 1}),
                                   coded({.stages = stages,
                                          .codes = codes,
                                          .group = group,
                                          .bits = 2,
                                          .scope = KVQ_SCOPE_HEAD,
                                          .norms = KVQ_SCOPE_HEAD})}));
      }
    }
  }
}

TEST_CASE("codes: as many stages as 1 and 2 bits take") {
  check_attention(
      {.name = "1 and 2 bits", .q_heads = 8, .kv_heads = 2, .head_dim = 128, .lengths = {300}},
      every_way({coded({.stages = 11, .codes = 64, .bits = 1}), coded({.stages = 21, .codes = 64, .bits = 2}),
                 coded({.stages = 11, .codes = 64, .bits = 1, .scope = KVQ_SCOPE_HEAD, .norms = KVQ_SCOPE_HEAD})}));
}

// Lengths whose last page holds fewer tokens than the others, or none.
TEST_CASE("codes: numbers of key heads that do not divide a page") {
  for (const int32_t kv_heads : {1, 2, 3, 5, 6, 33, 40}) {
    check_attention(
        {.name = std::to_string(kv_heads) + " key heads",
         .q_heads = kv_heads,
         .kv_heads = kv_heads,
         .head_dim = 8,
         .lengths = {80}},
        every_way({coded({.stages = 2, .codes = 8, .bits = 1}),
                   coded({.stages = 2, .codes = 8, .bits = 2, .scope = KVQ_SCOPE_HEAD, .norms = KVQ_SCOPE_HEAD})}));
  }
}

TEST_CASE("codes: several queries, and batches of sequences of different length") {
  for (const Scenario& each : several_queries()) check_attention(each, all_coded());
  check_attention({.name = "several parts", .lengths = {2100, 40}, .query_counts = {1, 1}}, few_storages());
}

TEST_CASE("codes: positions with gaps, queries anywhere, positions of any size") {
  for (const Scenario& each : positions_with_gaps()) check_attention(each, all_coded());
}

TEST_CASE("codes: window, soft-cap and scale") {
  for (const Scenario& each : windows()) check_attention(each, few_storages());
  check_attention(masked_and_capped(), few_storages());
}

// GPUs attend to these directly if there are few queries.
TEST_CASE("codes: heads of 128, with every mask, pages in FP16 between, and codes of 1 and 8 heads") {
  const Codes of_layer{.stages = 3, .codes = 16, .bits = 1};
  const Codes of_head{.stages = 2, .codes = 64, .bits = 2, .scope = KVQ_SCOPE_HEAD, .norms = KVQ_SCOPE_HEAD};
  const Codes mixed{.stages = 4, .codes = 32, .bits = 1, .norms = KVQ_SCOPE_HEAD};
  const std::vector<Storage> storages = {coded(of_layer), coded(of_head), {"commvq", "commvq", 32, 2, 3, mixed}};
  std::vector<Scenario> scenarios = several_queries();
  for (const Scenario& each : positions_with_gaps()) scenarios.push_back(each);
  scenarios.push_back(masked_and_capped());
  scenarios.push_back({.name = "sinks", .lengths = {300}, .sinks = {0.5F, -1.0F, 3.0F, 0.0F}});
  for (const int32_t kv_heads : {1, 8}) {
    scenarios.push_back(
        {.name = std::to_string(kv_heads) + " key heads", .q_heads = 16, .kv_heads = kv_heads, .lengths = {300}});
  }
  scenarios.push_back(
      {.name = "interleaved", .rope = KVQ_ROPE_INTERLEAVED, .lengths = {200, 33}, .query_counts = {4, 1}});
  for (Scenario& each : scenarios) {
    each.head_dim = 128;
    check_attention(each, storages);
  }
}

TEST_CASE("codes: every element type") {
  for (const Scenario& each : tensors_in_16_bits()) check_attention(each, few_storages());
}

}  // namespace conformance::commvq_attend_test
