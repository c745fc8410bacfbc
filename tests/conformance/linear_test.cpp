// Linear layers in every scheme, on every instruction set, against products in float64 with the dequantized matrix.
#include "gpu.h"
#include "support/handles.h"
#include "support/random.h"
#include "support/tensor.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace conformance::linear_test {

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

std::vector<float> multiply(const Matrix& matrix, const Shape& shape, const std::vector<float>& x, int32_t batch,
                            bool on_gpu = false) {
  std::vector<float> y(static_cast<size_t>(batch * shape.out));
  const std::span<const float> rows = std::span(x).first(static_cast<size_t>(batch * shape.in));
  if (!on_gpu) {
    matrix.linear(rows, batch, y);
    return y;
  }
  const kvq_test::DeviceCopy of_x(rows.data(), rows.size_bytes());
  const kvq_test::DeviceCopy of_y(y.data(), y.size() * sizeof(float));
  matrix.linear(of_x.data(), batch, of_y.data(), KVQ_F32);
  of_y.read(y.data());
  return y;
}

// Largest error of inputs, in standard deviations. CPUs round them to 8 bits: a step is a 127th of a block's largest
// input, which is below 5 deviations for normal inputs. GPUs round them to FP16, whose steps are 2^-10 of a number.
double step_of(bool on_gpu) { return on_gpu ? 5.0 / 1024.0 : 5.0 / 127.0; }

// Expected sum of an output, and its largest error from rounding the inputs: an input is off by at most half a step,
// errors of inputs are independent, and their sum never exceeds 6 deviations.
struct Expected {
  double sum;
  double limit;
};
Expected expected(const float* row, const float* x, int32_t in, double bias, bool on_gpu) {
  double sum = bias;
  double weights = 0.0;
  double inputs = 0.0;
  for (int32_t i = 0; i < in; ++i) {
    sum += static_cast<double>(row[i]) * static_cast<double>(x[i]);
    weights += static_cast<double>(row[i]) * static_cast<double>(row[i]);
    inputs += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
  const double step = step_of(on_gpu) * std::sqrt(inputs / in);
  return {sum, 6.0 * std::sqrt(weights) * step / std::sqrt(12.0) + 1e-6};
}

void check_products(const Matrix& matrix, const Shape& shape, const std::vector<float>& x, const std::vector<float>& y,
                    int32_t batch, bool on_gpu) {
  std::vector<float> w(static_cast<size_t>(shape.out * shape.in));
  matrix.dequantize(0, shape.out, w);
  const std::vector<float> bias = bias_of(shape);
  for (int32_t b = 0; b < batch; ++b) {
    for (int32_t r = 0; r < shape.out; ++r) {
      const auto row = static_cast<size_t>(r);
      const Expected each =
          expected(w.data() + r * shape.in, x.data() + b * shape.in, shape.in, static_cast<double>(bias[row]), on_gpu);
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
      std::vector<float> all;  // outputs of all rows, on the first instruction set
      for (const std::string& isa : kvq_test::backends()) {
        CAPTURE(isa);
        const bool on_gpu = isa == kvq_test::kCuda;
        const Context context = kvq_test::make_context(isa.c_str(), 2);
        const Matrix matrix = Matrix::load(context, file, "m");
        for (const int32_t batch : kBatches) {
          CAPTURE(batch);
          const std::vector<float> y = multiply(matrix, shape, x, batch, on_gpu);
          check_products(matrix, shape, x, y, batch, on_gpu);
          if (on_gpu || scheme == "fp16") continue;  // whose sums use FMA if the processor has it
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

namespace {

// Rows [batch, in] of normal numbers in an element type, and their values after rounding.
struct Inputs {
  kvq_test::Tensor tensor;
  std::vector<float> rounded;

  Inputs(size_t n, kvq_dtype dtype) : tensor(kvq_test::normal_tensor(n, 34), dtype) {
    for (size_t i = 0; i < n; ++i) rounded.push_back(static_cast<float>(tensor[i]));
  }
};

}  // namespace

TEST_CASE("a GPU multiplies by wide and by many rows, and by several matrices at once, in every element type") {
  if (skips()) return;
  const Context context = kvq_test::make_context(kvq_test::kCuda);
  struct Case {
    Shape shape;
    int32_t batch;
  };
  // Several rotations wider than a block handles at once, and a remainder of 64; more rows than are prepared at once.
  for (const Case& each : {Case{{17, 16384}, 2}, Case{{16, 24576}, 1}, Case{{5, 16448}, 3}, Case{{33, 64}, 1100}}) {
    const Shape& shape = each.shape;
    CAPTURE(shape.in);
    const auto rows = static_cast<size_t>(each.batch);
    std::vector<Matrix> matrices;
    for (const char* scheme : {"nuq-3", "fp16", "tcq-2.25"}) matrices.push_back(quantize(context, scheme, shape));
    for (const kvq_dtype dtype : {KVQ_F32, KVQ_F16, KVQ_BF16}) {
      CAPTURE(dtype);
      const Inputs x(rows * static_cast<size_t>(shape.in), dtype);
      const kvq_test::DeviceCopy of_x(x.tensor.data(), x.tensor.bytes().size());
      std::vector<kvq_test::Tensor> y(matrices.size(), kvq_test::Tensor(rows * static_cast<size_t>(shape.out), dtype));
      std::vector<std::unique_ptr<kvq_test::DeviceCopy>> of_y;
      std::vector<const qp_matrix*> handles;
      std::vector<void*> outputs;
      for (size_t i = 0; i < matrices.size(); ++i) {
        of_y.push_back(std::make_unique<kvq_test::DeviceCopy>(y[i].data(), y[i].bytes().size()));
        handles.push_back(matrices[i]);
        outputs.push_back(of_y[i]->data());
      }
      Matrix::linear_shared(handles, of_x.data(), each.batch, outputs, dtype);
      for (size_t i = 0; i < matrices.size(); ++i) {
        CAPTURE(i);
        of_y[i]->read(y[i].data());
        std::vector<float> w(static_cast<size_t>(shape.out) * static_cast<size_t>(shape.in));
        matrices[i].dequantize(0, shape.out, w);
        const std::vector<float> bias = bias_of(shape);
        const double rounding = dtype == KVQ_F32 ? 0.0 : (dtype == KVQ_F16 ? 1.0 / 1024.0 : 1.0 / 128.0);
        for (int32_t at = 0; at < each.batch * shape.out; ++at) {
          const int32_t r = at % shape.out;
          const Expected wanted = expected(w.data() + r * shape.in, x.rounded.data() + at / shape.out * shape.in,
                                           shape.in, static_cast<double>(bias[static_cast<size_t>(r)]), true);
          const double got = y[i][static_cast<size_t>(at)];
          REQUIRE_MESSAGE(std::abs(got - wanted.sum) <= wanted.limit + rounding * std::abs(wanted.sum), got,
                          " instead of ", wanted.sum);
        }
      }
    }
  }
}

TEST_CASE("a GPU multiplies many rows by every scheme") {
  if (skips()) return;
  const Context context = kvq_test::make_context(kvq_test::kCuda);
  const auto check = [&](const std::string& scheme, const Shape& shape, int32_t batch) {
    CAPTURE(scheme);
    CAPTURE(shape.in);
    CAPTURE(batch);
    const Matrix matrix = quantize(context, scheme.c_str(), shape);
    const std::vector<float> x = kvq_test::normal_tensor(static_cast<size_t>(batch * shape.in), 36);
    check_products(matrix, shape, x, multiply(matrix, shape, x, batch, true), batch, true);
  };
  for (const std::string& scheme : kvq::scheme_names()) check(scheme, {24, 256}, 40);
  // Several tiles of inputs and blocks of outputs, none of them full; and columns that do not fill a block of codes.
  for (const char* scheme : {"fp16", "nuq-8", "vq-2.5", "tcq-4.75", "tcx-2"}) {
    check(scheme, {152, 512}, 300);
    check(scheme, {40, 576}, 33);
    // Columns that thread blocks divide among themselves.
    for (const int32_t in : {768, 1024, 2304}) {
      check(scheme, {136, in}, 70);
      check(scheme, {24, in}, 256);
    }
  }
}

TEST_CASE("a GPU multiplies by several matrices of one scheme together") {
  if (skips()) return;
  const Context context = kvq_test::make_context(kvq_test::kCuda);
  constexpr int32_t kIn = 1024;
  // More matrices than one launch takes, the last two of another scheme; panels that are not a multiple of a block's.
  const std::vector<int32_t> outs = {600, 17, 250, 64, 33, 16, 100};
  for (const char* scheme : {"nuq-2", "tcq-2.25", "tcx-3"}) {
    CAPTURE(scheme);
    std::vector<Matrix> matrices;
    for (size_t i = 0; i < outs.size(); ++i) {
      matrices.push_back(quantize(context, i + 2 < outs.size() ? scheme : "vq-4", {outs[i], kIn}));
    }
    for (const int32_t batch : {1, 5, 20, 70, 256}) {
      CAPTURE(batch);
      const std::vector<float> x = kvq_test::normal_tensor(static_cast<size_t>(batch) * kIn, 37);
      const kvq_test::DeviceCopy of_x(x.data(), x.size() * sizeof(float));
      std::vector<std::vector<float>> y;
      std::vector<std::unique_ptr<kvq_test::DeviceCopy>> of_y;
      std::vector<const qp_matrix*> handles;
      std::vector<void*> outputs;
      for (size_t i = 0; i < outs.size(); ++i) {
        y.emplace_back(static_cast<size_t>(batch) * static_cast<size_t>(outs[i]));
        of_y.push_back(std::make_unique<kvq_test::DeviceCopy>(y[i].data(), y[i].size() * sizeof(float)));
        handles.push_back(matrices[i]);
        outputs.push_back(of_y[i]->data());
      }
      Matrix::linear_shared(handles, of_x.data(), batch, outputs, KVQ_F32);
      for (size_t i = 0; i < outs.size(); ++i) {
        CAPTURE(i);
        of_y[i]->read(y[i].data());
        check_products(matrices[i], {outs[i], kIn}, x, y[i], batch, true);
      }
    }
  }
}

TEST_CASE("a GPU multiplies right in every way, and takes the one that it is told to") {
  if (skips()) return;
  const Context context = kvq_test::make_context(kvq_test::kCuda);
  const Shape shape{264, 1024};
  for (const char* scheme : {"nuq-3", "tcq-2.25", "tcx-2"}) {
    CAPTURE(scheme);
    const Matrix matrix = quantize(context, scheme, shape);
    const std::vector<const qp_matrix*> handles{matrix};
    for (const int32_t batch : {1, 7, 40, 300}) {
      CAPTURE(batch);
      Matrix::tune(handles, batch);
      const std::string known = context.tuning_save();
      Matrix::tune(handles, batch);  // again: nothing is measured
      CHECK(context.tuning_save() == known);
      // The line of this shape, without its last column.
      const std::string key = '\t' + std::string(scheme) + "\t264\t1024\t" + std::to_string(batch) + '\t';
      const size_t at = known.find(key);
      REQUIRE(at != std::string::npos);
      const size_t begin = known.rfind('\n', at) + 1;
      const std::string line = known.substr(begin, at + key.size() - begin);
      const std::string head = known.substr(0, known.find('\n', known.find('\n') + 1) + 1);

      const std::vector<float> x = kvq_test::normal_tensor(static_cast<size_t>(batch * shape.in), 39);
      std::vector<std::string> ways{"own", "few", "tiles 1 1",
                                    "tiles 64 9"};  // the last two: out of range for it, so unchanged
      for (const char* rows : {"64", "256"}) {
        for (int32_t cluster = 1; cluster <= 8; ++cluster) {
          ways.push_back("tiles " + std::string(rows) + ' ' + std::to_string(cluster));
        }
      }
      for (const std::string& way : ways) {
        CAPTURE(way);
        context.tuning_load(head + line + way + '\n');
        CHECK(context.tuning_save().find(line + way + '\n') != std::string::npos);
        check_products(matrix, shape, x, multiply(matrix, shape, x, batch, true), batch, true);
      }
    }
  }
}

TEST_CASE("products that a GPU begins before others have ended read nothing that these have not written") {
  if (skips()) return;
  const Context context = kvq_test::make_context(kvq_test::kCuda);
  const Shape shape{264, 1024};
  constexpr int32_t kCalls = 12;
  for (const char* scheme : {"nuq-2", "tcq-2.25", "tcx-3"}) {
    CAPTURE(scheme);
    const Matrix matrix = quantize(context, scheme, shape);
    for (const int32_t batch : {1, 5, 70}) {
      CAPTURE(batch);
      const auto inputs = static_cast<size_t>(batch * shape.in);
      std::vector<std::vector<float>> x;
      std::vector<std::unique_ptr<kvq_test::DeviceCopy>> of_x;
      std::vector<std::unique_ptr<kvq_test::DeviceCopy>> of_y;
      std::vector<float> y(static_cast<size_t>(batch * shape.out));
      for (uint64_t i = 0; i < kCalls; ++i) {
        x.push_back(kvq_test::normal_tensor(inputs, 40 + i));
        of_x.push_back(std::make_unique<kvq_test::DeviceCopy>(x.back().data(), inputs * sizeof(float)));
        of_y.push_back(std::make_unique<kvq_test::DeviceCopy>(y.data(), y.size() * sizeof(float)));
      }
      for (size_t i = 0; i < kCalls; ++i) matrix.linear(of_x[i]->data(), batch, of_y[i]->data(), KVQ_F32);
      for (size_t i = 0; i < kCalls; ++i) {
        CAPTURE(i);
        of_y[i]->read(y.data());
        check_products(matrix, shape, x[i], y, batch, true);
      }
    }
  }
}

TEST_CASE("a GPU gives rows of NaN for rows that are not finite, zeros for zeros, and matrices back as they were") {
  if (skips()) return;
  const Context context = kvq_test::make_context(kvq_test::kCuda);
  const Shape shape{33, 192};
  const std::vector<std::byte> file = quantize(kvq_test::make_context().get(), "tcx-2.5", shape).save("m");
  const Matrix matrix = Matrix::load(context, file, "m");
  CHECK(matrix.save("m") == file);

  const auto in = static_cast<size_t>(shape.in);
  std::vector<float> x = kvq_test::normal_tensor(4 * in, 35);
  x[5] = std::numeric_limits<float>::quiet_NaN();
  x[in + 6] = -std::numeric_limits<float>::infinity();
  std::fill_n(x.begin() + static_cast<std::ptrdiff_t>(2 * in), in, 0.0F);
  const std::vector<float> y = multiply(matrix, shape, x, 4, true);
  const std::vector<float> bias = bias_of(shape);
  for (int32_t r = 0; r < shape.out; ++r) {
    const auto row = static_cast<size_t>(r);
    const auto out = static_cast<size_t>(shape.out);
    CHECK(std::isnan(y[row]));
    CHECK(std::isnan(y[out + row]));
    CHECK(y[2 * out + row] == bias[row]);
    CHECK(std::isfinite(y[3 * out + row]));
  }
  // The same result, bit for bit.
  const std::vector<float> again = multiply(matrix, shape, x, 4, true);
  CHECK(std::memcmp(y.data(), again.data(), y.size() * sizeof(float)) == 0);
}

}  // namespace conformance::linear_test
