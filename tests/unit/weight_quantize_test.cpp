// Packed matrices: their errors, scales and rotations, and what a Hessian changes.
#include <doctest/doctest.h>

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/hadamard.h"
#include "support/allocator.h"
#include "support/random.h"
#include "weights/hessian.h"
#include "weights/quantize.h"
#include "weights/rotation.h"

namespace weight_quantize_test {

using namespace kvq::weights;
using kvq_test::test_allocator;
using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

namespace {

kvq::Parallel& threads() {
  static kvq::Parallel parallel(2, nullptr, nullptr);
  return parallel;
}

Matrix quantized(const QuantizeOptions& options, const std::vector<float>& w, int32_t out, int32_t in) {
  return quantize(test_allocator(), {threads()}, options, w.data(), KVQ_F32, out, in, {nullptr, nullptr});
}

std::vector<float> dequantized(const Matrix& matrix) {
  std::vector<float> w(static_cast<size_t>(matrix.out) * static_cast<size_t>(matrix.in));
  dequantize_rows(matrix, 0, matrix.out, w);
  return w;
}

RowMajor in_double(const std::vector<float>& w, int32_t rows, int32_t columns) {
  return Eigen::Map<const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>(w.data(), rows,
                                                                                                 columns)
      .cast<double>();
}

// Second moments of correlated inputs, some much larger than others.
std::vector<float> correlated_hessian(int32_t in, uint64_t seed) {
  kvq_test::Random random(seed);
  RowMajor mix(in, in);
  for (int32_t i = 0; i < in; ++i) {
    const double size = i % 17 == 0 ? 4.0 : 0.3;
    for (int32_t j = 0; j < in; ++j) mix(i, j) = size * random.normal() * std::exp(-0.05 * std::abs(i - j));
  }
  const RowMajor hessian = mix * mix.transpose();
  std::vector<float> result(static_cast<size_t>(in) * static_cast<size_t>(in));
  for (int32_t i = 0; i < in; ++i) {
    for (int32_t j = 0; j < in; ++j) {
      result[static_cast<size_t>(i * in + j)] = static_cast<float>(0.5 * (hessian(i, j) + hessian(j, i)));
    }
  }
  return result;
}

std::string refusal(const QuantizeOptions& options, const std::vector<float>& w, int32_t out, int32_t in) {
  try {
    quantized(options, w, out, in);
    return "";
  } catch (const kvq::Error& error) {
    CHECK(error.status() == KVQ_E_ARGUMENT);
    return error.what();
  }
}

Scheme scheme(const char* name) { return parse_scheme(name).value(); }

}  // namespace

TEST_CASE("rotations keep lengths and are undone") {
  for (const int32_t in : {64, 128, 192, 320, 512, 4160}) {
    std::vector<uint8_t> signs(static_cast<size_t>(in) / 8);
    make_signs(3, signs);
    const std::vector<float> x = kvq_test::normal_tensor(static_cast<size_t>(in), 4);
    std::vector<float> rotated = x;
    rotate(signs, rotated);
    double before = 0.0;
    double after = 0.0;
    for (size_t i = 0; i < x.size(); ++i) {
      before += std::pow(static_cast<double>(x[i]), 2.0);
      after += std::pow(static_cast<double>(rotated[i]), 2.0);
    }
    CHECK(after == doctest::Approx(before).epsilon(1e-5));
    CHECK(rotated != x);
    rotate_back(signs, rotated);
    for (size_t i = 0; i < x.size(); ++i) REQUIRE(std::abs(rotated[i] - x[i]) < 1e-5F);
    CHECK((in < 128 || kvq::hadamard_block(rotated_together(in)) >= 128));
  }
}

TEST_CASE("one large weight among small ones is spread by the rotation") {
  const int32_t in = 512;
  std::vector<float> w = kvq_test::normal_tensor(static_cast<size_t>(16 * in), 5, 0.01);
  for (size_t r = 0; r < 16; ++r) w[r * static_cast<size_t>(in) + 3] = 0.3F;
  CHECK(quantized({.scheme = scheme("nuq-4")}, w, 16, in).error < 0.012);
}

TEST_CASE("the error that a matrix tells is that of its dequantized rows") {
  for (const char* name : {"nuq-2", "nuq-5", "vq-2.5", "tcq-2", "tcq-2.25", "tcx-3.5", "fp16"}) {
    const int32_t out = 19;
    const int32_t in = 192;
    const std::vector<float> w = kvq_test::normal_tensor(static_cast<size_t>(out * in), 6, 0.02);
    const Matrix matrix = quantized({.scheme = scheme(name)}, w, out, in);
    const std::vector<float> decoded = dequantized(matrix);
    const RowMajor error = in_double(decoded, out, in) - in_double(w, out, in);
    const double relative = error.squaredNorm() / in_double(w, out, in).squaredNorm();
    CHECK_MESSAGE(matrix.error == doctest::Approx(relative).epsilon(2e-3), name);
    CHECK(matrix.proxy_error == 0.0);
  }
}

TEST_CASE("rows are scaled one by one and rows of zeros stay zeros") {
  const int32_t in = 256;
  std::vector<float> w = kvq_test::normal_tensor(static_cast<size_t>(20 * in), 7);
  for (size_t i = 0; i < static_cast<size_t>(in); ++i) {
    w[i] *= 1e-3F;
    w[5 * static_cast<size_t>(in) + i] = 0.0F;
    w[19 * static_cast<size_t>(in) + i] *= 50.0F;
  }
  const std::vector<float> decoded = dequantized(quantized({.scheme = scheme("tcq-3")}, w, 20, in));
  for (int32_t row = 0; row < 20; ++row) {
    double error = 0.0;
    double energy = 0.0;
    for (size_t i = 0; i < static_cast<size_t>(in); ++i) {
      const size_t at = static_cast<size_t>(row * in) + i;
      if (row == 5) REQUIRE(decoded[at] == 0.0F);
      error += std::pow(static_cast<double>(decoded[at] - w[at]), 2.0);
      energy += std::pow(static_cast<double>(w[at]), 2.0);
    }
    if (row != 5) CHECK(error < 0.035 * energy);
  }
  const Matrix zeros = quantized({.scheme = scheme("vq-2")}, std::vector<float>(static_cast<size_t>(3 * in)), 3, in);
  CHECK(zeros.error == 0.0);
  for (const float each : dequantized(zeros)) REQUIRE(each == 0.0F);
}

TEST_CASE("true bits of a wide layer are near those of its scheme") {
  for (const Scheme& each : kSchemes) {
    const Matrix matrix(test_allocator(), each, 4096, 4096);
    CHECK(std::abs(matrix.true_bits() - each.bits()) < 0.02);
  }
}

TEST_CASE("quantizing does not depend on threads") {
  kvq::Parallel alone(1, nullptr, nullptr);
  const std::vector<float> w = kvq_test::normal_tensor(40 * 128, 8);
  const std::vector<float> hessian = correlated_hessian(128, 9);
  const QuantizeOptions options{.scheme = scheme("tcq-1.75"), .hessian = hessian.data()};
  const Matrix first = quantized(options, w, 40, 128);
  const Matrix second = quantize(test_allocator(), {alone}, options, w.data(), KVQ_F32, 40, 128, {nullptr, nullptr});
  CHECK(dequantized(first) == dequantized(second));
  CHECK(first.error == second.error);
  CHECK(first.proxy_error == second.proxy_error);
}

TEST_CASE("factors of a Hessian multiply to the rotated and damped one") {
  for (const char* name : {"nuq-3", "vq-3", "tcq-3", "tcq-2.25"}) {
    const int32_t in = 192;
    Matrix matrix(test_allocator(), scheme(name), 16, in);
    make_signs(1, matrix.signs);
    const std::vector<float> hessian = correlated_hessian(in, 10);
    SteppedLoops loops(threads(), {nullptr, nullptr}, 1.0, in);
    const Hessian factors(test_allocator(), loops, nullptr, hessian.data(), matrix, 0.01);

    // Energy of a random row from the factors, against x H xᵀ in double.
    const std::vector<float> x = kvq_test::normal_tensor(static_cast<size_t>(kTileRows * in), 11);
    double energy = 0.0;
    for (const Segment& segment : matrix.segments) {
      const int32_t together = coded_together(segment.code);
      for (int32_t t = segment.first_column / kTileColumns; t < (segment.first_column + segment.columns) / kTileColumns;
           ++t) {
        TileNumbers sums{};
        factors.sum_beyond(t, x.data(), sums);
        std::array<float, kTileColumns> y = sums[0];
        for (int32_t c = 0; c < kTileColumns; ++c) {
          y[static_cast<size_t>(c)] += x[static_cast<size_t>(t * kTileColumns + c)];
          for (int32_t j = c / together * together + together; j < kTileColumns; ++j) {
            y[static_cast<size_t>(c)] += x[static_cast<size_t>(t * kTileColumns + j)] * factors.factor(t, j, c);
          }
        }
        for (int32_t begin = 0; begin < kTileColumns; begin += together)
          energy += factors.energy(t, begin, together, y);
      }
    }
    std::vector<float> row(static_cast<size_t>(in));  // from coding order back to inputs
    for (const Segment& segment : matrix.segments) {
      for (int32_t i = 0; i < segment.columns; ++i) {
        const int32_t at =
            segment.first_column + i / kTileColumns * kTileColumns + coding_order(segment.code, i % kTileColumns);
        row[static_cast<size_t>(at)] = x[static_cast<size_t>(segment.first_column + i)];
      }
    }
    rotate_back(matrix.signs, row);
    const RowMajor v = in_double(row, 1, in);
    const double expected =
        (v * in_double(hessian, in, in) * v.transpose())(0, 0) + factors.damping() * v.squaredNorm();
    CHECK_MESSAGE(energy == doctest::Approx(expected).epsilon(2e-3), name);
  }
}

TEST_CASE("LDLQ lowers the error of outputs, which the matrix tells") {
  for (const char* name : {"nuq-2", "vq-2", "tcq-2", "tcx-2", "tcq-2.25"}) {
    const int32_t out = 32;
    const int32_t in = 256;
    const std::vector<float> w = kvq_test::normal_tensor(static_cast<size_t>(out * in), 12);
    const std::vector<float> hessian = correlated_hessian(in, 13);
    const RowMajor h = in_double(hessian, in, in);
    const auto proxy = [&](const Matrix& matrix) {
      const RowMajor weights = in_double(w, out, in);
      const RowMajor error = in_double(dequantized(matrix), out, in) - weights;
      return (error * h * error.transpose()).trace() / (weights * h * weights.transpose()).trace();
    };
    const Matrix ldlq = quantized({.scheme = scheme(name), .hessian = hessian.data()}, w, out, in);
    const Matrix nearest =
        quantized({.scheme = scheme(name), .hessian = hessian.data(), .feed_back = false}, w, out, in);
    CHECK_MESSAGE(ldlq.proxy_error == doctest::Approx(proxy(ldlq)).epsilon(0.02), name);
    CHECK_MESSAGE(nearest.proxy_error == doctest::Approx(proxy(nearest)).epsilon(0.02), name);
    CHECK_MESSAGE(proxy(ldlq) < 0.9 * proxy(nearest), name);
    CHECK_MESSAGE(ldlq.error > nearest.error, name);
  }
}

TEST_CASE("weights and Hessians that cannot be used are refused by name") {
  const std::vector<float> w = kvq_test::normal_tensor(16 * 64, 14);
  const std::vector<float> good = correlated_hessian(64, 15);
  const QuantizeOptions options{.scheme = scheme("nuq-3"), .hessian = good.data()};
  CHECK(refusal(options, w, 16, 64).empty());

  std::vector<float> bad = w;
  bad[70] = std::numeric_limits<float>::quiet_NaN();
  CHECK(refusal({.scheme = scheme("nuq-3")}, bad, 16, 64).find("w[1, 6] is nan") != std::string::npos);
  bad[70] = 1e6F;
  CHECK(refusal({.scheme = scheme("fp16")}, bad, 16, 64).find("too large for FP16") != std::string::npos);

  const auto with_hessian = [&](size_t at, float value) {
    std::vector<float> hessian = good;
    hessian[at] = value;
    return refusal({.scheme = scheme("nuq-3"), .hessian = hessian.data()}, w, 16, 64);
  };
  CHECK(with_hessian(0, -1.0F).find("hessian[0, 0] is -1") != std::string::npos);
  CHECK(with_hessian(1, good[1] + 50.0F).find("symmetric") != std::string::npos);
  CHECK(with_hessian(65, std::numeric_limits<float>::infinity()).find("finite") != std::string::npos);
  std::vector<float> indefinite(64 * 64, 1.0F);
  for (size_t i = 0; i < 64; ++i) indefinite[i * 65] = 0.2F;
  CHECK(refusal({.scheme = scheme("nuq-3"), .hessian = indefinite.data()}, w, 16, 64).find("positive definite") !=
        std::string::npos);
  const std::vector<float> none(64 * 64);
  CHECK(refusal({.scheme = scheme("nuq-3"), .hessian = none.data()}, w, 16, 64).find("0 everywhere") !=
        std::string::npos);
}

namespace {

/// Fake search that returns a matrix's codes, two panels at a time.
class CodesOf final : public Quantizing {
 public:
  explicit CodesOf(const Matrix& matrix) : matrix_(matrix) {}

  kvq::Owned<PanelCoder> make_coder(kvq::Allocator& allocator, const PanelTask& task) override {
    CHECK(task.scheme == matrix_.scheme);
    CHECK(task.hessian == nullptr);
    CHECK_FALSE(task.feed_back);
    return kvq::make_owned<Coder>(allocator, matrix_);
  }
  bool factorize(kvq::Allocator& /*allocator*/, float* /*matrix*/, int32_t /*n*/) override { return false; }

 private:
  class Coder final : public PanelCoder {
   public:
    explicit Coder(const Matrix& matrix) : matrix_(matrix) {}
    int32_t panels() const override { return 2; }
    void encode(const PanelBatch& batch) override {
      CHECK(batch.panels == std::min(2, panels_of(matrix_.out) - next_));
      CHECK(batch.error_sums.empty());
      double squares = 0.0;
      for (const float x : batch.numbers.first(static_cast<size_t>(matrix_.in))) squares += double{x} * double{x};
      CHECK(squares / matrix_.in == doctest::Approx(1.0).epsilon(2e-3));
      std::copy_n(matrix_.panel(next_).data(), batch.codes.size(), batch.codes.begin());
      next_ += batch.panels;
    }

   private:
    const Matrix& matrix_;
    int32_t next_ = 0;
  };

  const Matrix& matrix_;
};

}  // namespace

TEST_CASE("a device finds codes, and the quantizer does the rest") {
  constexpr int32_t kRows = 40;  // two panels and a part of one
  constexpr int32_t kColumns = 128;
  const std::vector<float> w = kvq_test::normal_tensor(kRows * kColumns, 17, 0.02);
  for (const char* name : {"nuq-3", "vq-2.5", "tcq-2.25"}) {
    CAPTURE(name);
    const QuantizeOptions options{.scheme = scheme(name)};
    const Matrix expected = quantized(options, w, kRows, kColumns);
    CodesOf device(expected);
    const Matrix matrix = quantize(test_allocator(), {threads(), &device}, options, w.data(), KVQ_F32, kRows, kColumns,
                                   {nullptr, nullptr});
    CHECK(std::memcmp(matrix.codes.data(), expected.codes.data(), expected.code_bytes()) == 0);
    CHECK(matrix.error == expected.error);
    CHECK(matrix.row_scales == expected.row_scales);
  }
}

TEST_CASE("a Hessian that a device cannot factorize is not positive definite") {
  const std::vector<float> w = kvq_test::normal_tensor(16 * 64, 18);
  const std::vector<float> hessian = correlated_hessian(64, 19);
  const QuantizeOptions options{.scheme = scheme("nuq-2"), .hessian = hessian.data()};
  const Matrix any = quantized(options, w, 16, 64);
  CodesOf device(any);
  try {
    quantize(test_allocator(), {threads(), &device}, options, w.data(), KVQ_F32, 16, 64, {nullptr, nullptr});
    FAIL("was quantized");
  } catch (const kvq::Error& error) {
    CHECK(error.status() == KVQ_E_ARGUMENT);
  }
}

TEST_CASE("quantizing can be cancelled") {
  const std::vector<float> w = kvq_test::normal_tensor(64 * 64, 16);
  int32_t calls = 0;
  const auto stop = [](void* user, double done) -> int32_t {
    CHECK(done > 0.0);
    return ++*static_cast<int32_t*>(user) == 2 ? 1 : 0;
  };
  try {
    quantize(test_allocator(), {threads()}, {.scheme = scheme("nuq-2")}, w.data(), KVQ_F32, 64, 64, {stop, &calls});
    FAIL("was not cancelled");
  } catch (const kvq::Error& error) {
    CHECK(error.status() == KVQ_E_CANCELLED);
  }
  CHECK(calls == 2);
}

}  // namespace weight_quantize_test
