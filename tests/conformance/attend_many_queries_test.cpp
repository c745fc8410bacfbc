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

/// On a GPU, also with the kernels of older ones.
void check_many(Scenario scenario, const std::vector<Storage>& storages) {
  scenario.older_gpus = true;
  check_attention(scenario, storages);
}

}  // namespace

TEST_CASE("many queries of the newest tokens, in every format") {
  for (const int32_t head_dim : {40, 64, 80, 96, 128, 192, 200, 256}) {
    if (kvq_test::kSmallRun && head_dim != 64 && head_dim != 80 && head_dim != 256) continue;
    check_many({.name = "chunk, head_dim " + std::to_string(head_dim),
                .q_heads = 8,
                .kv_heads = 2,
                .head_dim = head_dim,
                .lengths = {kvq_test::full_or_small(700, 300)},
                .query_counts = {kvq_test::full_or_small(150, 100)}},
               storages());
  }
}

TEST_CASE("prompts of many lengths") {
  for (const int32_t n : {320, 321, 352, 385, 511, 512, 640}) {
    if (kvq_test::kSmallRun && n != 385) continue;
    check_many({.name = "prompt of " + std::to_string(n),
                .q_heads = 2,
                .kv_heads = 2,
                .head_dim = 128,
                .lengths = {n},
                .query_counts = {n}},
               few_storages());
  }
}

TEST_CASE("many queries on few and on many key heads") {
  check_many({.name = "one key head",
              .q_heads = 32,
              .kv_heads = 1,
              .head_dim = 128,
              .lengths = {500},
              .query_counts = {kvq_test::full_or_small(70, 13)}},
             few_storages());
  check_many({.name = "groups of seven",
              .q_heads = 14,
              .kv_heads = 2,
              .head_dim = 64,
              .lengths = {400},
              .query_counts = {kvq_test::full_or_small(100, 56)}},
             few_storages());
  check_many({.name = "one query head",
              .q_heads = 1,
              .kv_heads = 1,
              .head_dim = 192,
              .lengths = {400},
              .query_counts = {kvq_test::full_or_small(330, 325)}},
             few_storages());
  check_many({.name = "a key head each",
              .q_heads = 8,
              .kv_heads = 8,
              .head_dim = 64,
              .lengths = {kvq_test::full_or_small(450, 400)},
              .query_counts = {kvq_test::full_or_small(400, 390)}},
             few_storages());
}

TEST_CASE("batches of prompts, chunks and single tokens") {
  for (const int32_t head_dim : {80, 128, 192, 256}) {
    check_many({.name = "ragged, head_dim " + std::to_string(head_dim),
                .q_heads = 8,
                .kv_heads = 2,
                .head_dim = head_dim,
                .lengths = {200, 90, 333, 31, 128},
                .query_counts = {100, 1, 81, 2, 128}},
               few_storages());
  }
}

TEST_CASE("many queries of long lists, which several blocks share") {
  for (const int32_t head_dim : {72, 128, 256}) {
    check_many({.name = "long, head_dim " + std::to_string(head_dim),
                .q_heads = 8,
                .kv_heads = 1,
                .head_dim = head_dim,
                .lengths = {kvq_test::full_or_small(2500, 1100)},
                .query_counts = {51}},
               few_storages());
  }
}

TEST_CASE("many queries with windows") {
  for (const int32_t head_dim : {64, 96, 256}) {
    if (kvq_test::kSmallRun && head_dim != 64) continue;
    check_many({.name = "window of 200, head_dim " + std::to_string(head_dim),
                .q_heads = 8,
                .kv_heads = 2,
                .head_dim = head_dim,
                .lengths = {700, 300},
                .query_counts = {100, 97},
                .sliding_window = 200},
               few_storages());
  }
  for (const int32_t window : {1, 33, 128, 300, 1000}) {
    if (kvq_test::kSmallRun && window != 33) continue;
    check_many({.name = "window " + std::to_string(window),
                .q_heads = 8,
                .kv_heads = 2,
                .head_dim = 64,
                .lengths = {700, 300},
                .query_counts = {100, 97},
                .sliding_window = window},
               few_storages());
  }
}

TEST_CASE("many queries at positions with gaps, and anywhere") {
  for (const Positions positions : {Positions::kGaps, Positions::kAnyQueries}) {
    for (const int32_t window : {0, 50}) {
      check_many({.name = "gaps",
                  .q_heads = 16,
                  .kv_heads = 2,
                  .head_dim = 64,
                  .lengths = {300, 140},
                  .query_counts = {52, 49},
                  .positions = positions,
                  .sliding_window = window},
                 few_storages());
    }
  }
}

TEST_CASE("many queries with soft-cap, sinks, another scale and halves") {
  for (const int32_t head_dim : {128, 192, 256}) {
    if (kvq_test::kSmallRun && head_dim == 192) continue;
    Scenario scenario{.name = "soft-cap",
                      .q_heads = 8,
                      .kv_heads = 2,
                      .head_dim = head_dim,
                      .lengths = {300},
                      .query_counts = {100},
                      .logit_softcap = 5.0F};
    CAPTURE(head_dim);
    check_many(scenario, few_storages());
    scenario.name = "sinks";
    scenario.logit_softcap = 0.0F;
    scenario.sinks = {0.5F, -3.0F, 2.0F, 8.0F, 0.0F, -1.0F, 1.0F, 4.0F};
    check_many(scenario, few_storages());
    scenario.name = "a negative scale";
    scenario.sinks = {};
    scenario.scale = -0.125F;
    check_many(scenario, few_storages());
    scenario.scale = 0.0F;
    scenario.rope = KVQ_ROPE_INTERLEAVED;
    scenario.rotary_dim = 64;
    for (const kvq_dtype dtype : {KVQ_F16, KVQ_BF16}) {
      scenario.name = "halves";
      scenario.kv_dtype = scenario.q_dtype = scenario.output_dtype = dtype;
      check_many(scenario, few_storages());
    }
  }
}

}  // namespace conformance::attend_many_queries_test
