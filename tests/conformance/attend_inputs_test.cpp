#include "accuracy.h"
#include "attention_error.h"

#include <doctest/doctest.h>

#include <cmath>
#include <string>

namespace conformance::attend_inputs_test {
namespace {

const std::vector<Storage>& few_storages() {
  static const std::vector<Storage> storages = {Storage::uniform("fp16"), Storage::uniform("int8+hadamard"),
                                                Storage::uniform("int4"), Storage::uniform("int2")};
  return storages;
}

const char* name_of(kvq_dtype dtype) { return dtype == KVQ_F32 ? "f32" : dtype == KVQ_F16 ? "f16" : "bf16"; }

}  // namespace

TEST_CASE("rotary embedding in both pairings, of all channels or the leading ones") {
  for (const kvq_rope rope : {KVQ_ROPE_NONE, KVQ_ROPE_HALF, KVQ_ROPE_INTERLEAVED}) {
    for (const int32_t rotary_dim : {0, 2, 32, 64, 96}) {
      if (rope == KVQ_ROPE_NONE && rotary_dim != 0) continue;
      for (const float base : {10000.0F, 500000.0F}) {
        check_attention({.name = "rope " + std::to_string(rope) + ", rotary_dim " + std::to_string(rotary_dim),
                         .head_dim = 96,
                         .rope = rope,
                         .rotary_dim = rotary_dim,
                         .rope_base = base,
                         .lengths = {150},
                         .query_counts = {4}},
                        few_storages());
      }
    }
  }
}

TEST_CASE("the caller's own inverse frequencies") {
  for (const kvq_rope rope : {KVQ_ROPE_HALF, KVQ_ROPE_INTERLEAVED}) {
    for (const int32_t rotary_dim : {64, 24}) {
      Scenario scenario{.name = "inv_freq, rope " + std::to_string(rope),
                        .rope = rope,
                        .rotary_dim = rotary_dim,
                        .lengths = {150},
                        .query_counts = {4}};
      for (int32_t j = 0; j < rotary_dim / 2; ++j) {
        scenario.inv_freq.push_back(j % 5 == 4 ? 0.0F : 0.7F / static_cast<float>(1 + j * j));
      }
      check_attention(scenario, few_storages());
    }
  }
}

TEST_CASE("every element type going in and coming out") {
  for (const kvq_dtype kv : {KVQ_F32, KVQ_F16, KVQ_BF16}) {
    for (const kvq_dtype q : {KVQ_F32, KVQ_F16, KVQ_BF16}) {
      for (const kvq_dtype out : {KVQ_F32, KVQ_F16, KVQ_BF16}) {
        check_attention({.name = std::string("k, v ") + name_of(kv) + ", q " + name_of(q) + ", out " + name_of(out),
                         .head_dim = 80,
                         .lengths = {70, 1},
                         .query_counts = {3, 1},
                         .kv_dtype = kv,
                         .q_dtype = q,
                         .output_dtype = out},
                        few_storages());
      }
    }
  }
}

// Keys and values are rounded to 11 bits: a relative error of at most 2^-12 rms per scalar, which averages over the
// channels of a logit and over tokens.
TEST_CASE("an FP16 cache is within FP16 rounding of attention on what was appended") {
  constexpr double kLimit = 1e-3;
  for (const int32_t n : {1, 32, 33, 200, 1000, 4100}) {
    for (const kvq_rope rope : {KVQ_ROPE_NONE, KVQ_ROPE_HALF, KVQ_ROPE_INTERLEAVED}) {
      const Scenario scenario{.name = "length " + std::to_string(n) + ", rope " + std::to_string(rope),
                              .head_dim = 128,
                              .rope = rope,
                              .lengths = {n},
                              .positions = Positions::kGaps};
      const Inputs inputs = make_inputs(scenario);
      const std::vector<double> expected = attention_over_inputs(scenario, inputs);
      for (const std::string& isa : kvq_test::backends()) {
        const Run run(scenario, inputs, Storage::uniform("fp16"), isa);
        const double error = largest_difference(run.attend(), expected) / largest_value(inputs);
        measure({"end to end", "fp16", isa, error, kLimit}, scenario.name);
      }
    }
  }
}

// At position p the angle of the fastest pair is p radians: rounded to FP32 it would rotate that pair by up to 0.06 at
// a million. Attention depends on differences of positions only, so nothing but the rounding of keys to FP16 may
// differ.
TEST_CASE("positions around a million attend as at zero") {
  const Scenario scenario{.name = "late positions", .head_dim = 128, .lengths = {64}};
  const Inputs inputs = make_inputs(scenario);
  std::vector<int32_t> late(64);
  for (size_t i = 0; i < late.size(); ++i) late[i] = 1'000'000 + static_cast<int32_t>(i);
  for (const std::string& isa : kvq_test::backends()) {
    const Run early(scenario, inputs, Storage::uniform("fp16"), isa);
    Inputs moved = inputs;
    moved.sequences[0].positions = late;
    moved.sequences[0].query_positions = {late.back()};
    Scenario given = scenario;
    given.positions = Positions::kGaps;  // continues the positions
    const Run run(given, moved, Storage::uniform("fp16"), isa);
    const kvq_test::Tensor a = early.attend();
    const kvq_test::Tensor b = run.attend();
    double error = 0.0;
    for (size_t i = 0; i < a.size(); ++i) error = std::max(error, std::fabs(a[i] - b[i]));
    measure({"position 10^6", "fp16", isa, error / largest_value(inputs), 1e-3}, scenario.name);
  }
}

}  // namespace conformance::attend_inputs_test
