#include "accuracy.h"
#include "attention_error.h"
#include "support/build.h"

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

namespace conformance::format_error_test {
namespace {

double rms_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum / static_cast<double>(a.size()));
}

std::vector<double> values_of(const kvq_test::Tensor& tensor) {
  std::vector<double> values(tensor.size());
  for (size_t i = 0; i < values.size(); ++i) values[i] = tensor[i];
  return values;
}

// The newest tokens are FP16 anyway: queries at the last page boundary mostly see sealed pages.
Scenario long_context(bool outlier_channels) {
  return {.name = outlier_channels ? "outlier channels" : "normal numbers",
          .q_heads = 8,
          .kv_heads = 4,
          .head_dim = 128,
          .lengths = {kvq_test::full_or_small(1025, 257), 257},
          .query_counts = {8, 8},
          .outlier_channels = outlier_channels};
}

}  // namespace

// The header's promise for formats whose queries and probabilities are rounded: this adds much less than the error of
// the format. Compares root mean squares over all outputs.
TEST_CASE("the error of fixed-point products is well below that of the format") {
  for (const bool outliers : {false, true}) {
    const Scenario scenario = long_context(outliers);
    const Inputs inputs = make_inputs(scenario);
    const std::vector<double> exact = attention_over_inputs(scenario, inputs);
    for (const Storage& storage : all_storages()) {
      if (storage.keys == "fp16" && storage.values == "fp16") continue;
      for (const std::string& isa : kvq_test::backends()) {
        const Run run(scenario, inputs, storage, isa);
        const std::vector<double> decoded = attention_over_decoded(scenario, inputs, run).out;
        const double kernel = rms_difference(values_of(run.attend()), decoded);
        const double format = rms_difference(decoded, exact);
        measure({"kernel error / format error", storage.name(), isa, kernel / format, 0.5}, scenario.name);
      }
    }
  }
}

TEST_CASE("a format with more bits is closer to what was appended") {
  const Scenario scenario = long_context(false);
  const Inputs inputs = make_inputs(scenario);
  const std::vector<double> exact = attention_over_inputs(scenario, inputs);
  const auto error_of = [&](const std::string& format) {
    const Run run(scenario, inputs, Storage::uniform(format), kvq_cpu_isa_name(0));
    return rms_difference(attention_over_decoded(scenario, inputs, run).out, exact);
  };
  const std::vector<std::vector<std::string>> families = {
      {"int8", "int4", "int3", "int2"},
      {"int8+hadamard", "int4+hadamard", "int3+hadamard", "int2+hadamard"},
      {"gs4", "gs3", "gs2", "gs1"},
      {"gt3", "gt2", "gt1"}};
  for (const std::vector<std::string>& family : families) {
    double previous = 0.0;
    for (const std::string& format : family) {
      CAPTURE(format);
      const double error = error_of(format);
      CHECK(error > 1.5 * previous);
      previous = error;
    }
  }
  // Gain-shape codes need fewer bits than integers for the same error, and a trellis loses less than a grid.
  for (const std::string bits : {"1", "2", "3"}) {
    CAPTURE(bits);
    CHECK(error_of("gt" + bits) < 0.9 * error_of("gs" + bits));
  }
  CHECK(error_of("gs2") < error_of("int2+hadamard"));
}

}  // namespace conformance::format_error_test
