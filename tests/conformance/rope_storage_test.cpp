#include "accuracy.h"
#include "scenario.h"
#include "support/random.h"

#include <doctest/doctest.h>

#include <cmath>
#include <string>

namespace conformance::rope_storage_test {

// Half an FP16 step, and the rotation error from rounding the angle or its inverse frequency to FP32.
TEST_CASE("stored keys are the appended ones, rotated to their positions") {
  constexpr int32_t kHeadDim = 80;
  for (const kvq_rope rope : {KVQ_ROPE_NONE, KVQ_ROPE_HALF, KVQ_ROPE_INTERLEAVED}) {
    for (const int32_t rotary_dim : {0, 32}) {
      const Scenario scenario{.name = "rope " + std::to_string(rope) + ", rotary_dim " + std::to_string(rotary_dim),
                              .head_dim = kHeadDim,
                              .rope = rope,
                              .rotary_dim = rotary_dim,
                              .lengths = {3000},
                              .positions = Positions::kGaps};
      const Inputs inputs = make_inputs(scenario);
      const kvq_test::Rotation rotation = kvq_test::Rotation::from(options_of(scenario));
      const Inputs::Tokens& tokens = inputs.sequences[0];
      for (const std::string& isa : kvq_test::backends()) {
        const Run run(scenario, inputs, Storage::uniform("fp16"), isa);
        const std::vector<kvq_test::Decoded> heads = run.decode(0);
        double worst = 0.0;
        bool values_exact = true;
        for (size_t head = 0; head < heads.size(); ++head) {
          REQUIRE(heads[head].positions == tokens.positions);
          for (size_t t = 0; t < tokens.positions.size(); ++t) {
            std::vector<double> key(kHeadDim);
            double size = 0.0;
            for (size_t c = 0; c < kHeadDim; ++c) {
              key[c] = tokens.k[(t * heads.size() + head) * kHeadDim + c];
              size = std::max(size, std::fabs(key[c]));
            }
            rotation.apply(key, tokens.positions[t]);
            const double turn = rope == KVQ_ROPE_NONE ? 0.0 : 2.0 * size * tokens.positions[t] * 0x1p-23;
            for (size_t c = 0; c < kHeadDim; ++c) {
              const double limit = 0.5 * kvq_test::half_spacing(key[c]) + turn + 1e-6 * size;
              worst = std::max(worst, std::fabs(double{heads[head].k[t * kHeadDim + c]} - key[c]) / limit);
              const double value = tokens.v[(t * heads.size() + head) * kHeadDim + c];
              values_exact = values_exact && double{heads[head].v[t * kHeadDim + c]} == kvq_test::to_half(value);
            }
          }
        }
        CHECK(values_exact);
        measure({"rotate keys", "fp16", isa, worst, 1.0}, scenario.name);
      }
    }
  }
}

TEST_CASE("rotary pairing none stores keys as they are") {
  const Scenario scenario{.name = "none", .rope = KVQ_ROPE_NONE, .lengths = {70}, .positions = Positions::kGaps};
  const Inputs inputs = make_inputs(scenario);
  const Run run(scenario, inputs, Storage::uniform("fp16"), kvq_cpu_isa_name(0));
  const std::vector<kvq_test::Decoded> heads = run.decode(0);
  for (size_t t = 0; t < 70; ++t) {
    for (size_t c = 0; c < 64; ++c) {
      CHECK_EQ(double{heads[1].k[t * 64 + c]}, kvq_test::to_half(inputs.sequences[0].k[(t * 2 + 1) * 64 + c]));
    }
  }
}

}  // namespace conformance::rope_storage_test
