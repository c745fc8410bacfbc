// Masks of the newest slots, against float64: any bits, and trees whose positions repeat and fall.
#include "attention_error.h"
#include "support/random.h"

#include <doctest/doctest.h>

#include <string>

namespace conformance::slot_masks_test {
namespace {

const std::vector<Storage>& few_storages() {
  static const std::vector<Storage> storages = {Storage::uniform("fp16"), Storage::uniform("int4"),
                                                Storage::uniform("gs4"),  Storage::uniform("int2+hadamard"),
                                                Storage::uniform("gt2"),  {"int4", "int4", 32, 1, 2}};
  return storages;
}

std::vector<Storage> every_storage() {
  std::vector<Storage> storages = all_storages();
  for (const char* format : {"gs4", "gs2", "gt2", "gs1", "gs2+centres"}) storages.push_back(Storage::uniform(format));
  for (const Storage& coded : every_way(coded_storages())) storages.push_back(coded);
  return storages;
}

}  // namespace

TEST_CASE("a mask says which of the newest slots a query sees: every format") {
  check_attention(
      {.name = "any bits", .lengths = {170, 33}, .query_counts = {5, 3}, .masks = Masks::kRandom, .mask_slots = 75},
      every_storage());
  check_attention(
      {.name = "a tree", .lengths = {170, 64}, .query_counts = {37, 9}, .masks = Masks::kTree, .mask_slots = 40},
      every_storage());
}

TEST_CASE("a mask of any number of slots, of sequences of any length") {
  for (const int32_t slots : {1, 31, 32, 33, 64, 100, 1000, 1024}) {
    for (const Positions positions : {Positions::kConsecutive, Positions::kGaps, Positions::kAnyQueries}) {
      check_attention({.name = "mask of " + std::to_string(slots),
                       .lengths = {1, 33, 64, 500, 31, 97},
                       .query_counts = {1, 5, 64, 2, 31, 1},
                       .positions = positions,
                       .masks = Masks::kRandom,
                       .mask_slots = slots},
                      few_storages());
    }
  }
}

TEST_CASE("a mask over many pages, of one query and of many") {
  for (const int32_t queries : {1, 2, 40, 130}) {
    check_attention({.name = std::to_string(queries) + " queries",
                     .q_heads = 8,
                     .lengths = {3000},
                     .query_counts = {queries},
                     .masks = Masks::kRandom,
                     .mask_slots = 777},
                    few_storages());
  }
}

TEST_CASE("a mask for every head size and number of query heads") {
  for (const int32_t head_dim : {32, 64, 80, 128, 256}) {
    for (const int32_t kv_heads : {1, 2, 8}) {
      for (const Masks masks : {Masks::kRandom, Masks::kTree}) {
        check_attention({.name = "head_dim " + std::to_string(head_dim) + ", 8 heads on " + std::to_string(kv_heads),
                         .q_heads = 8,
                         .kv_heads = kv_heads,
                         .head_dim = head_dim,
                         .lengths = {161, 20},
                         .query_counts = {7, 3},
                         .masks = masks,
                         .mask_slots = 45},
                        few_storages());
      }
    }
  }
}

TEST_CASE("a sliding window, a cap and sinks beside a mask") {
  for (const Masks masks : {Masks::kRandom, Masks::kTree}) {
    for (const int32_t window : {1, 5, 40, 1000}) {
      check_attention({.name = "window " + std::to_string(window),
                       .lengths = {200, 65},
                       .query_counts = {40, 17},
                       .positions = Positions::kGaps,
                       .sliding_window = window,
                       .logit_softcap = 5.0F,
                       .sinks = {0.0F, 3.5F, -2.0F, 1.0F},
                       .masks = masks,
                       .mask_slots = 50},
                      few_storages());
    }
  }
}

TEST_CASE("a layer that reads the pages of another one takes masks, too") {
  auto shape = kvq_test::initialised<kvq_layer_shape>();
  shape.first_layer = 1;
  shape.pages_of_layer = 0;
  kvq_cache_options options = kvq_test::cache_options(4, 2, 64, 2);
  options.shapes = &shape;
  options.n_shapes = 1;
  for (const std::string& backend : kvq_test::backends()) {
    const kvq_test::Context context = kvq_test::make_context(backend.c_str());
    const kvq_test::Cache cache = kvq_test::make_cache(context, options, "int4");
    kvq_test::Sequence sequence(cache);
    const std::vector<float> k = kvq_test::normal_tensor(100 * 128, 1);
    const std::vector<float> q = kvq_test::normal_tensor(256, 2);
    kvq_test::append(sequence.get(), 0, 100, k.data(), k.data());
    const uint32_t mask[] = {0x5a5a5a5a, 0x1234};
    const kvq_sequence* pointer = sequence.get();
    const auto attend = [&](int32_t layer, bool masked) {
      std::vector<float> out(256);
      auto batch = kvq_test::initialised<kvq_attend_batch>();
      batch.n_sequences = 1;
      batch.sequences = &pointer;
      batch.q = q.data();
      batch.output = out.data();
      batch.mask = masked ? mask : nullptr;
      batch.mask_slots = masked ? 50 : 0;
      kvq_test::attend(cache, layer, batch);
      return out;
    };
    CHECK(attend(1, true) == attend(0, true));
    CHECK(attend(1, true) != attend(1, false));
  }
}

TEST_CASE("trees that fill pages, open pages and begin sequences") {
  for (const int32_t tokens : {1, 2, 31, 32, 33, 64, 100}) {
    for (const int32_t older : {0, 1, 31, 32, 63, 300}) {
      check_attention({.name = "tree of " + std::to_string(tokens) + " behind " + std::to_string(older),
                       .lengths = {older + tokens},
                       .query_counts = {tokens},
                       .masks = Masks::kTree,
                       .mask_slots = tokens + 3},
                      few_storages());
    }
  }
}

}  // namespace conformance::slot_masks_test
