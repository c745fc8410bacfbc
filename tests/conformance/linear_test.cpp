// Linear layers in every scheme, on every instruction set, against products in float64 with the dequantized matrix.
#include "support/handles.h"
#include "support/random.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace conformance {

using kvq_test::Context;
using kvq_test::Matrix;

namespace {

struct Shape {
  int32_t out;
  int32_t in;
};
constexpr Shape kShapes[] = {{1, 64}, {33, 320}, {48, 192}};
constexpr int32_t kBatches[] = {1, 3, 8, 17};
constexpr int32_t kMostRows = 17;

std::vector<float> bias_of(const Shape& shape) { return kvq_test::normal_tensor(static_cast<size_t>(shape.out), 31); }

Matrix quantize(kvq_context* context, const char* scheme, const Shape& shape) {
  const std::vector<float> w = kvq_test::normal_tensor(static_cast<size_t>(shape.out * shape.in), 32, 0.05);
  const std::vector<float> bias = bias_of(shape);
  auto options = kvq_test::initialised<qp_quantize_options>();
  options.scheme = scheme;
  options.bias = bias.data();
  return Matrix::quantize(context, options, w, shape.out, shape.in);
}

std::vector<float> multiply(const Matrix& matrix, const Shape& shape, const std::vector<float>& x, int32_t batch) {
  std::vector<float> y(static_cast<size_t>(batch * shape.out));
  matrix.linear(std::span(x).first(static_cast<size_t>(batch * shape.in)), batch, y);
  return y;
}

// The sum that an output approaches, and how far rounding the inputs to 8 bits may take it: an input is off by half a
// step at most, a step is a 127th of the largest input of a block, which of normal inputs is below 5 deviations; errors
// of different inputs are independent, and 6 deviations of their sum are never seen.
struct Expected {
  double sum;
  double limit;
};
Expected expected(const float* row, const float* x, int32_t in, double bias) {
  double sum = bias;
  double weights = 0.0;
  double inputs = 0.0;
  for (int32_t i = 0; i < in; ++i) {
    sum += static_cast<double>(row[i]) * static_cast<double>(x[i]);
    weights += static_cast<double>(row[i]) * static_cast<double>(row[i]);
    inputs += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
  const double step = 5.0 * std::sqrt(inputs / in) / 127.0;
  return {sum, 6.0 * std::sqrt(weights) * step / std::sqrt(12.0) + 1e-6};
}

void check_products(const Matrix& matrix, const Shape& shape, const std::vector<float>& x, const std::vector<float>& y,
                    int32_t batch) {
  std::vector<float> w(static_cast<size_t>(shape.out * shape.in));
  matrix.dequantize(0, shape.out, w);
  const std::vector<float> bias = bias_of(shape);
  for (int32_t b = 0; b < batch; ++b) {
    for (int32_t r = 0; r < shape.out; ++r) {
      const auto row = static_cast<size_t>(r);
      const Expected each =
          expected(w.data() + r * shape.in, x.data() + b * shape.in, shape.in, static_cast<double>(bias[row]));
      const double got = static_cast<double>(y[static_cast<size_t>(b * shape.out + r)]);
      REQUIRE_MESSAGE(std::abs(got - each.sum) <= each.limit, got, " instead of ", each.sum, " ± ", each.limit);
    }
  }
}

}  // namespace

TEST_CASE("products in every scheme are those of the dequantized matrix") {
  const Context first = kvq_test::make_context();
  for (const std::string& scheme : kvq::scheme_names()) {
    CAPTURE(scheme);
    for (const Shape& shape : kShapes) {
      CAPTURE(shape.in);
      const std::vector<std::byte> file = quantize(first, scheme.c_str(), shape).save("m");
      const std::vector<float> x = kvq_test::normal_tensor(static_cast<size_t>(kMostRows * shape.in), 33);
      std::vector<float> all;  // of all rows, on the first instruction set
      for (const std::string& isa : kvq_test::cpu_isa_names()) {
        CAPTURE(isa);
        const Context context = kvq_test::make_context(isa.c_str(), 2);
        const Matrix matrix = Matrix::load(context, file, "m");
        for (const int32_t batch : kBatches) {
          CAPTURE(batch);
          const std::vector<float> y = multiply(matrix, shape, x, batch);
          check_products(matrix, shape, x, y, batch);
          if (scheme == "fp16") continue;  // its sums are fused where the processor can
          if (all.empty()) all = multiply(matrix, shape, x, kMostRows);
          REQUIRE(std::memcmp(y.data(), all.data(), y.size() * sizeof(float)) == 0);
        }
      }
    }
  }
}

TEST_CASE("matrices are quantized to the same bytes with any number of threads") {
  const Shape shape{33, 320};
  for (const char* scheme : {"nuq-3", "vq-4.5", "tcq-1.75", "tcq-5", "tcx-2.5"}) {
    CAPTURE(scheme);
    std::vector<std::byte> file;
    for (const int32_t threads : {1, 2, 3}) {
      const Context context = kvq_test::make_context(nullptr, threads);
      const std::vector<std::byte> each = quantize(context, scheme, shape).save("m");
      if (file.empty()) file = each;
      CHECK(each == file);
    }
  }
}

}  // namespace conformance
