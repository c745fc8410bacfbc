// Matrices quantized on a GPU: the same files as on a CPU.
#include "gpu.h"
#include "support/failure.h"
#include "support/handles.h"
#include "support/random.h"
#include "support/tensor.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

namespace conformance::quantize_test {
namespace {

using kvq_test::Context;
using kvq_test::Matrix;

struct Shape {
  int32_t out;
  int32_t in;
};

/// Normal rows, except the first ones, many of whose codes tie.
std::vector<float> weights_of(const Shape& shape) {
  const auto in = static_cast<size_t>(shape.in);
  std::vector<float> w = kvq_test::normal_tensor(static_cast<size_t>(shape.out) * in, 41, 0.05);
  std::fill_n(w.begin(), in, 0.0F);
  if (shape.out > 1) std::fill_n(w.begin() + static_cast<ptrdiff_t>(in), in, 0.25F);
  return w;
}

/// E[xxᵀ] of correlated inputs.
std::vector<float> hessian_of(int32_t in) {
  const auto n = static_cast<size_t>(in);
  const std::vector<float> x = kvq_test::normal_tensor(2 * n * n, 42);
  std::vector<float> hessian(n * n);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j <= i; ++j) {
      double sum = 0.0;
      for (size_t t = 0; t < 2 * n; ++t) {
        const float* row = x.data() + t * n;
        const auto mixed = [&](size_t at) { return double{row[at]} + 0.7 * double{row[(at + 1) % n]}; };
        sum += mixed(i) * mixed(j);
      }
      hessian[i * n + j] = hessian[j * n + i] = static_cast<float>(sum / static_cast<double>(2 * n));
    }
  }
  return hessian;
}

bool is_trellis(const std::string& scheme) { return scheme.starts_with("tc"); }

/// Shapes small enough for an emulated GPU and for a trellis search on a CPU.
std::vector<Shape> shapes_of(const std::string& scheme) {
  if (is_trellis(scheme)) return {{17, 64}};
  return {{1, 64}, {33, 320}, {48, 192}};
}

std::vector<std::byte> file_of(kvq_context* context, const qp_quantize_options& options, const Shape& shape) {
  return Matrix::quantize(context, options, weights_of(shape), shape.out, shape.in).save("m");
}

}  // namespace

TEST_CASE("a GPU quantizes to the CPU's bytes in every scheme") {
  if (skips()) return;
  const Context cpu = kvq_test::make_context(nullptr, 2);
  const Context gpu = kvq_test::make_context(kvq_test::kCuda, 2);
  auto options = kvq_test::initialised<qp_quantize_options>();
  for (const std::string& scheme : kvq::scheme_names()) {
    CAPTURE(scheme);
    options.scheme = scheme.c_str();
    for (const Shape& shape : shapes_of(scheme)) {
      CAPTURE(shape.in);
      CHECK(file_of(gpu, options, shape) == file_of(cpu, options, shape));
    }
  }
}

TEST_CASE("a GPU quantizes to the CPU's bytes with a Hessian") {
  if (skips()) return;
  const Context cpu = kvq_test::make_context(nullptr, 2);
  const Context gpu = kvq_test::make_context(kvq_test::kCuda, 2);
  auto options = kvq_test::initialised<qp_quantize_options>();
  for (const std::string scheme : {"nuq-2", "nuq-5", "vq-1.5", "vq-5", "tcq-1.75", "tcx-2", "tcx-3.5"}) {
    CAPTURE(scheme);
    options.scheme = scheme.c_str();
    for (const Shape& shape : shapes_of(scheme)) {
      CAPTURE(shape.in);
      const std::vector<float> hessian = hessian_of(shape.in);
      options.hessian = hessian.data();
      for (const qp_rounding rounding : {QP_ROUNDING_LDLQ, QP_ROUNDING_NEAREST}) {
        CAPTURE(rounding);
        options.rounding = rounding;
        CHECK(file_of(gpu, options, shape) == file_of(cpu, options, shape));
      }
    }
  }
}

TEST_CASE("a GPU refuses a Hessian that is not positive definite, as the CPU does") {
  if (skips()) return;
  const Context gpu = kvq_test::make_context(kvq_test::kCuda, 2);
  auto options = kvq_test::initialised<qp_quantize_options>();
  const Shape shape{16, 128};
  std::vector<float> indefinite(static_cast<size_t>(shape.in * shape.in), 1.0F);
  for (int32_t i = 0; i < shape.in; ++i) indefinite[static_cast<size_t>(i * (shape.in + 1))] = 0.2F;
  options.hessian = indefinite.data();
  const std::string refused = kvq_test::failure(KVQ_E_ARGUMENT, [&] { file_of(gpu, options, shape); });
  CHECK(refused.find("not positive definite") != std::string::npos);
}

TEST_CASE("what a GPU tells of a matrix's error is what its weights have lost, and less than nearest levels lose") {
  if (skips()) return;
  const Context gpu = kvq_test::make_context(kvq_test::kCuda, 2);
  const Shape shape{16, 64};
  const std::vector<float> w = kvq_test::normal_tensor(static_cast<size_t>(shape.out * shape.in), 43);
  double of_levels = 0.0;
  for (const char* scheme : {"nuq-2", "tcx-2", "tcq-2"}) {
    CAPTURE(scheme);
    auto options = kvq_test::initialised<qp_quantize_options>();
    options.scheme = scheme;
    const Matrix matrix = Matrix::quantize(gpu, options, w, shape.out, shape.in);
    std::vector<float> decoded(w.size());
    matrix.dequantize(0, shape.out, decoded);
    double errors = 0.0;
    double norm = 0.0;
    for (size_t i = 0; i < w.size(); ++i) {
      errors += std::pow(double{decoded[i]} - double{w[i]}, 2);
      norm += std::pow(double{w[i]}, 2);
    }
    CHECK(matrix.describe().error == doctest::Approx(errors / norm).epsilon(1e-4));
    if (of_levels == 0.0) of_levels = errors;
    if (is_trellis(scheme)) CHECK(errors < 0.75 * of_levels);
  }
}

TEST_CASE("a GPU that quantizes tells how far it is, stops when asked to, and leaves nothing") {
  if (skips()) return;
  const Context gpu = kvq_test::make_context(kvq_test::kCuda, 2);
  auto options = kvq_test::initialised<qp_quantize_options>();
  std::vector<double> told;
  options.scheme = "nuq-2";
  file_of(gpu, options, {1, 64});  // after this the context keeps the data that all matrices share
  const uint64_t before = gpu.describe().bytes;
  options.progress_user = &told;
  options.progress = [](void* user, double done) -> int32_t {
    static_cast<std::vector<double>*>(user)->push_back(done);
    return 0;
  };
  const Shape shape{4200, 1024};  // more rows than the device codes at once
  const std::vector<float> w = kvq_test::normal_tensor(static_cast<size_t>(shape.out * shape.in), 44);
  Matrix::quantize(gpu, options, w, shape.out, shape.in);
  CHECK(told.size() > 1);
  CHECK(std::is_sorted(told.begin(), told.end()));
  CHECK(told.back() == 1.0);
  CHECK(gpu.describe().bytes == before);

  options.progress = [](void*, double) -> int32_t { return 1; };
  const std::string stopped =
      kvq_test::failure(KVQ_E_CANCELLED, [&] { Matrix::quantize(gpu, options, w, shape.out, shape.in); });
  CHECK(stopped.find("after 0 of 4200 rows") != std::string::npos);
  CHECK(gpu.describe().bytes == before);
}

TEST_CASE("what a GPU takes to quantize counts as the context's memory") {
  if (skips()) return;
  auto chosen = kvq_test::initialised<kvq_context_options>();
  chosen.device = KVQ_DEVICE_CUDA;
  chosen.max_bytes = 1U << 20U;  // enough for a matrix and its numbers, but not for the search
  const Context gpu(chosen);
  auto options = kvq_test::initialised<qp_quantize_options>();
  const Shape shape{16, 64};
  options.scheme = "tcx-2";
  const uint64_t before = gpu.describe().bytes;
  kvq_test::failure(KVQ_E_LIMIT, [&] { file_of(gpu, options, shape); });
  CHECK(gpu.describe().bytes == before);
  options.scheme = "nuq-2";
  CHECK_FALSE(file_of(gpu, options, shape).empty());
}

}  // namespace conformance::quantize_test
