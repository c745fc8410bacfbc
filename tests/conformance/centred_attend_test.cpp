// Attention over pages with trained centres, against float64 over the reference decoder's output.
#include "attention_error.h"

#include <doctest/doctest.h>

#include <string>

namespace conformance::centred_attend_test {
namespace {

std::vector<Storage> few_storages() { return {centred_storages()[0], centred_storages()[1]}; }

Storage uniform(const char* format, int32_t centres) {
  return {.keys = format, .values = format, .centres = {.keys = centres, .values = centres}};
}

}  // namespace

TEST_CASE("centres: every head size, pairing and number of query heads") {
  for (const int32_t head_dim : {64, 80, 128}) {
    for (const kvq_rope rope : {KVQ_ROPE_NONE, KVQ_ROPE_HALF, KVQ_ROPE_INTERLEAVED}) {
      for (const int32_t group : {1, 3, 4}) {
        const char* const pairing = rope == KVQ_ROPE_NONE   ? ", none"
                                    : rope == KVQ_ROPE_HALF ? ", half"
                                                            : ", interleaved";
        check_attention({.name = "head_dim " + std::to_string(head_dim) + ", group " + std::to_string(group) + pairing,
                         .q_heads = 2 * group,
                         .head_dim = head_dim,
                         .rope = rope,
                         .lengths = {161, 70},
                         .query_counts = {1, 3}},
                        head_dim == 80 ? few_storages() : centred_storages());
      }
    }
  }
}

TEST_CASE("centres: the smallest head and the largest, and channels without RoPE") {
  for (const int32_t head_dim : {8, 24, 256}) {
    for (const int32_t rotary_dim : {0, head_dim / 2 + 2}) {
      check_attention({.name = "head_dim " + std::to_string(head_dim) + ", rotary_dim " + std::to_string(rotary_dim),
                       .head_dim = head_dim,
                       .rotary_dim = rotary_dim,
                       .lengths = {100}},
                      {centred_storages()[0], centred_storages()[1], centred_storages()[3]});
    }
  }
}

// Pairs that rotate by more than a radian within a page: all, none, and some in any order.
TEST_CASE("centres: frequencies of any size") {
  std::vector<float> mixed;
  for (int32_t pair = 0; pair < 32; ++pair) mixed.push_back(pair % 3 == 1 ? 0.7F : pair % 3 == 2 ? -0.004F : 0.0F);
  for (const std::vector<float>& frequencies :
       {std::vector<float>(32, 0.9F), std::vector<float>(32, 1e-3F), std::vector<float>(32, 0.0F), mixed}) {
    check_attention({.name = "frequencies " + std::to_string(frequencies[0]) + ", " + std::to_string(frequencies[1]),
                     .inv_freq = frequencies,
                     .lengths = {200},
                     .query_counts = {5}},
                    few_storages());
  }
  check_attention({.name = "rope_base 1e6", .rope_base = 1e6F, .lengths = {200}}, few_storages());
}

TEST_CASE("centres: every number of them") {
  for (const int32_t centres : {1, 2, 3, 15, 16, 17, 31, 64, 255, 256}) {
    check_attention({.name = std::to_string(centres) + " centres", .lengths = {170}, .query_counts = {2}},
                    {uniform("gs2+centres", centres), uniform("gt1+centres", centres)});
  }
}

TEST_CASE("centres: several queries, and batches of sequences of different length") {
  for (const Scenario& each : several_queries()) check_attention(each, centred_storages());
  check_attention({.name = "several parts", .lengths = {2100, 40}, .query_counts = {1, 1}}, few_storages());
}

// Pages with gaps in their positions rotate centres by each token's position; consecutive pages, next to them, by the
// page's.
TEST_CASE("centres: positions with gaps, queries anywhere, positions of any size") {
  for (const Scenario& each : positions_with_gaps()) check_attention(each, centred_storages());
  check_attention({.name = "thousands of positions", .lengths = {2500}, .positions = Positions::kGaps}, few_storages());
}

TEST_CASE("centres: window, soft-cap and scale") {
  for (const Scenario& each : windows()) check_attention(each, few_storages());
  check_attention(masked_and_capped(), few_storages());
}

TEST_CASE("centres: sinks, and every element type") {
  check_attention({.name = "sinks", .lengths = {200}, .query_counts = {3}, .sinks = {0.5F, -2.0F, 9.0F, 3.0F}},
                  centred_storages());
  for (const Scenario& each : tensors_in_16_bits()) check_attention(each, few_storages());
}

}  // namespace conformance::centred_attend_test
