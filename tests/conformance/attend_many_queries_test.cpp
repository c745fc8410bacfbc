// Prompts, chunks of prompts and long drafts: enough queries that a backend may use another kernel.
#include "attention_error.h"
#include "support/build.h"

#include <doctest/doctest.h>

#include <string>

namespace conformance::attend_many_queries_test {
namespace {

/// Storages with every kind of codes, rotated and not, alone and mixed with FP16.
std::vector<Storage> storages() {
  std::vector<Storage> found = {Storage::uniform("fp16"), Storage::uniform("int4"), Storage::uniform("gs2")};
  if (kvq_test::kSmallRun) return found;
  for (const char* format : {"int8", "int3", "int2+hadamard", "gs1", "gs3", "gs4", "gt1", "gt2", "gt3"}) {
    found.push_back(Storage::uniform(format));
  }
  found.push_back({"int8", "int2+hadamard", 64, 1, 2});
  found.push_back({"fp16", "int4", 32, 0, 1});
  found.push_back({"gs2", "fp16", 32, 0, 1});
  return found;
}

std::vector<Storage> few_storages() {
  return {Storage::uniform("fp16"), Storage::uniform("int4"), Storage::uniform("gs2")};
}

}  // namespace

TEST_CASE("many queries of the newest tokens, in every format") {
  for (const int32_t head_dim : {64, 128}) {
    check_attention({.name = "chunk, head_dim " + std::to_string(head_dim),
                     .q_heads = 8,
                     .kv_heads = 2,
                     .head_dim = head_dim,
                     .lengths = {kvq_test::full_or_small(700, 300)},
                     .query_counts = {kvq_test::full_or_small(150, 90)}},
                    storages());
  }
}

TEST_CASE("prompts of many lengths") {
  for (const int32_t n : {320, 321, 352, 385, 511, 512, 640}) {
    if (kvq_test::kSmallRun && n != 321) continue;
    check_attention({.name = "prompt of " + std::to_string(n),
                     .q_heads = 2,
                     .kv_heads = 2,
                     .head_dim = 128,
                     .lengths = {n},
                     .query_counts = {n}},
                    few_storages());
  }
}

TEST_CASE("many queries on few and on many key heads") {
  check_attention({.name = "one key head",
                   .q_heads = 32,
                   .kv_heads = 1,
                   .head_dim = 128,
                   .lengths = {500},
                   .query_counts = {kvq_test::full_or_small(70, 11)}},
                  few_storages());
  check_attention({.name = "groups of seven",
                   .q_heads = 14,
                   .kv_heads = 2,
                   .head_dim = 64,
                   .lengths = {400},
                   .query_counts = {kvq_test::full_or_small(100, 47)}},
                  few_storages());
  check_attention({.name = "a key head each",
                   .q_heads = 8,
                   .kv_heads = 8,
                   .head_dim = 64,
                   .lengths = {kvq_test::full_or_small(450, 330)},
                   .query_counts = {kvq_test::full_or_small(350, 325)}},
                  few_storages());
}

TEST_CASE("batches of prompts, chunks and single tokens") {
  check_attention({.name = "ragged",
                   .q_heads = 8,
                   .kv_heads = 2,
                   .head_dim = 128,
                   .lengths = {200, 90, 333, 31, 128},
                   .query_counts = {100, 1, 81, 2, 128}},
                  few_storages());
}

TEST_CASE("many queries with windows") {
  for (const int32_t window : {1, 33, 128, 300, 1000}) {
    if (kvq_test::kSmallRun && window != 33) continue;
    check_attention({.name = "window " + std::to_string(window),
                     .q_heads = 8,
                     .kv_heads = 2,
                     .head_dim = 64,
                     .lengths = {700, 300},
                     .query_counts = {90, 90},
                     .sliding_window = window},
                    few_storages());
  }
}

TEST_CASE("many queries at positions with gaps, and anywhere") {
  for (const Positions positions : {Positions::kGaps, Positions::kAnyQueries}) {
    for (const int32_t window : {0, 50}) {
      check_attention({.name = "gaps",
                       .q_heads = 16,
                       .kv_heads = 2,
                       .head_dim = 64,
                       .lengths = {300, 140},
                       .query_counts = {45, 40},
                       .positions = positions,
                       .sliding_window = window},
                      few_storages());
    }
  }
}

TEST_CASE("many queries with soft-cap, sinks, another scale and halves") {
  Scenario scenario{.name = "soft-cap",
                    .q_heads = 8,
                    .kv_heads = 2,
                    .head_dim = 128,
                    .lengths = {300},
                    .query_counts = {90},
                    .logit_softcap = 5.0F};
  check_attention(scenario, few_storages());
  scenario.name = "sinks";
  scenario.logit_softcap = 0.0F;
  scenario.sinks = {0.5F, -3.0F, 2.0F, 8.0F, 0.0F, -1.0F, 1.0F, 4.0F};
  check_attention(scenario, few_storages());
  scenario.name = "a negative scale";
  scenario.sinks = {};
  scenario.scale = -0.125F;
  check_attention(scenario, few_storages());
  scenario.scale = 0.0F;
  scenario.rope = KVQ_ROPE_INTERLEAVED;
  scenario.rotary_dim = 64;
  for (const kvq_dtype dtype : {KVQ_F16, KVQ_BF16}) {
    scenario.name = "halves";
    scenario.kv_dtype = scenario.q_dtype = scenario.output_dtype = dtype;
    check_attention(scenario, few_storages());
  }
}

}  // namespace conformance::attend_many_queries_test
