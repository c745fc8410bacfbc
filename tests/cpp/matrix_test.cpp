#include <array>

#include "model.h"

namespace matrix_test {
namespace {

constexpr int64_t kRows = 48;
constexpr int64_t kColumns = 64;

std::vector<float> weights(uint64_t seed) { return kvq_test::normal_tensor(size_t{kRows} * kColumns, seed); }

kvq::Matrix quantized(const kvq::Context& context, uint64_t seed, const char* scheme = "nuq-8") {
  auto options = kvq::initialised<qp_quantize_options>();
  options.scheme = scheme;
  return kvq::Matrix::quantize(context, options, weights(seed), kRows, kColumns);
}

/// x·Wᵀ in float64 with the dequantized matrix.
double product(const kvq::Matrix& matrix, std::span<const float> x, int64_t row) {
  std::vector<float> w(kColumns);
  matrix.dequantize(row, 1, w);
  double sum = 0.0;
  for (size_t i = 0; i < w.size(); ++i) sum += double{w[i]} * double{x[i]};
  return sum;
}

}  // namespace

TEST_CASE("a linear layer is the product with the dequantized matrix, alone and shared") {
  const kvq::Context context;
  const std::array matrices{quantized(context, 1), quantized(context, 2, "tcx-4")};
  const std::vector<float> x = kvq_test::normal_tensor(2 * kColumns, 3);
  std::array<std::vector<float>, 2> alone{std::vector<float>(2 * kRows), std::vector<float>(2 * kRows)};
  std::array<std::vector<float>, 2> shared = alone;
  for (size_t i = 0; i < 2; ++i) matrices[i].linear(x, 2, alone[i]);
  const std::array<void*, 2> outputs{shared[0].data(), shared[1].data()};
  kvq::Matrix::linear_shared(kvq::pointers(matrices), x.data(), 2, outputs, KVQ_F32);
  CHECK((alone == shared));
  std::vector<float> raw(2 * kRows);
  matrices[0].linear(x.data(), 2, raw.data(), KVQ_F32);
  CHECK(raw == alone[0]);
  for (size_t i = 0; i < 2; ++i) {
    for (int64_t at = 0; at < 2 * kRows; ++at) {
      const auto row = std::span(x).subspan(static_cast<size_t>(at / kRows * kColumns), kColumns);
      CHECK(std::abs(double{alone[i][static_cast<size_t>(at)]} - product(matrices[i], row, at % kRows)) < 0.3);
    }
  }
  CHECK_FAILS(KVQ_E_ARGUMENT, "y has 1 elements instead of 2 (as many as matrices)",
              kvq::Matrix::linear_shared(kvq::pointers(matrices), x.data(), 2, std::span(outputs).first(1), KVQ_F32));
}

TEST_CASE("matrices are written to a file and read from it") {
  const kvq::Context context;
  const std::array matrices{quantized(context, 1), quantized(context, 2)};
  const std::array names{"one", "two"};
  const std::vector<std::byte> file = kvq::Matrix::save(kvq::pointers(matrices), names);
  const kvq::Matrix two = kvq::Matrix::load(context, file, "two");
  CHECK(two.describe().error == matrices[1].describe().error);
  CHECK(two.save("two") == matrices[1].save("two"));
  CHECK_FAILS(KVQ_E_ARGUMENT, "three", kvq::Matrix::load(context, file, "three"));
  CHECK_FAILS(KVQ_E_ARGUMENT, "names has 1 elements instead of 2 (as many as matrices)",
              kvq::Matrix::save(kvq::pointers(matrices), std::span(names).first(1)));
  CHECK_FAILS(KVQ_E_ARGUMENT, "name contains a NUL", two.save(std::string("a\0b", 3)));
  const auto options = kvq::initialised<qp_quantize_options>();
  const std::vector<float> w = weights(1);
  CHECK(kvq::Matrix::quantize(context, options, w, kRows, kColumns).save("m") ==
        kvq::Matrix::quantize(context, options, w.data(), kRows, kColumns).save("m"));
}

TEST_CASE("what a matrix takes is known before there is one") {
  const kvq::Context context;
  const uint64_t before = context.describe().bytes;
  const kvq::Matrix matrix = quantized(context, 1);
  uint64_t allocated = 0;
  CHECK(kvq::Matrix::predict_bytes("nuq-8", kRows, kColumns, 0, &allocated) == matrix.describe().bytes);
  CHECK(allocated == context.describe().bytes - before);
  CHECK(kvq::Matrix::predict_bytes("nuq-8", kRows, kColumns, 0) == matrix.describe().bytes);
  CHECK_FAILS(KVQ_E_ARGUMENT, "rows is 0", kvq::Matrix::predict_bytes("nuq-8", 0, kColumns, 0));
}

TEST_CASE("a CPU has nothing to tune") {
  const kvq::Context context;
  const std::array matrices{quantized(context, 1), quantized(context, 2)};
  CHECK_FAILS(KVQ_E_UNSUPPORTED, "CPU", kvq::Matrix::tune(kvq::pointers(matrices), 1));
  CHECK_FAILS(KVQ_E_ARGUMENT, "batch is 0", kvq::Matrix::tune(kvq::pointers(matrices), 0));
  CHECK_FAILS(KVQ_E_UNSUPPORTED, "CPU", context.tuning_save());
  CHECK_FAILS(KVQ_E_UNSUPPORTED, "CPU", context.tuning_load(""));
}

}  // namespace matrix_test
