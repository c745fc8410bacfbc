// Every instruction set's products with packed matrices, against sums in double over the decoded weights.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/dispatch/isa.h"
#include "backend/cpu/linear/linear.h"
#include "core/tensor.h"
#include "weights/codebook.h"
#include "weights/matrix.h"
#include "weights/rotation.h"

namespace linear_kernels_test {

using kvq::cpu::KernelTable;
using kvq::weights::Code;
using kvq::weights::Codebook;
using kvq::weights::Family;
using kvq::weights::Matrix;
using kvq::weights::Scheme;

namespace {

struct Shape {
  int32_t out;
  int32_t in;
};
constexpr Shape kShapes[] = {{16, 64}, {17, 192}, {31, 320}, {40, 4160}, {130, 512}};
constexpr int32_t kBatches[] = {1, 2, 3, 5, 8, 9, 33, 65};
constexpr int32_t kMostRows = 65;

// A codebook with arbitrary levels: kernels must not depend on the trained ones.
struct AnyCodebook {
  explicit AnyCodebook(const Code& code, unsigned seed) {
    std::mt19937 random(seed + static_cast<unsigned>(code.quarters));
    int32_t index_bits = code.window_bits();
    if (code.family == Family::kTcq) index_bits = 9 + static_cast<int32_t>(seed % 3);
    if (code.family == Family::kTcx) index_bits = 7;
    for (int32_t i = 0; i < code.dims() << index_bits; ++i) {
      levels.push_back(static_cast<int8_t>(static_cast<int32_t>(random() % 255) - 127));
    }
    codebook = {code, 0.01F, levels, index_bits, static_cast<uint32_t>(random()) & 0xFFFFU};
  }
  AnyCodebook(const AnyCodebook&) = delete;

  std::vector<int8_t> levels;
  Codebook codebook;
};

unsigned codebook_seed = 0;

const Codebook& any_codebook(const Code& code) {
  static std::map<std::pair<int, unsigned>, AnyCodebook> codebooks;
  const std::pair key(static_cast<int>(code.family) * 100 + code.quarters, codebook_seed);
  return codebooks.try_emplace(key, code, codebook_seed).first->second.codebook;
}

struct AnyMatrix {
  AnyMatrix(kvq::Allocator& allocator, const Scheme& scheme, const Shape& shape, unsigned seed)
      : matrix(allocator, scheme, shape.out, shape.in) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    if (scheme.family == Family::kFloat16) {
      auto* halves = reinterpret_cast<uint16_t*>(matrix.codes.data());
      for (size_t i = 0; i < matrix.code_bytes() / 2; ++i) halves[i] = kvq::to_float16(normal(random));
    } else {
      for (size_t i = 0; i < matrix.code_bytes(); ++i) matrix.codes.data()[i] = static_cast<std::byte>(random());
    }
    matrix.scale = 1.5F;
    for (uint16_t& scale : matrix.row_scales) scale = kvq::to_float16(0.5F + std::fabs(normal(random)));
    kvq::weights::make_signs(7, matrix.signs);
    for (int32_t i = 0; seed % 2 == 0 && i < shape.out; ++i) matrix.bias.push_back(normal(random));
  }

  // Weight times scales, for rotated inputs.
  std::vector<double> weights() const {
    const auto in = static_cast<size_t>(matrix.in);
    std::vector<double> rows(static_cast<size_t>(matrix.out) * in);
    std::vector<int8_t> levels(kvq::weights::kTileWeights);
    for (int32_t row = 0; row < matrix.out; row += 16) {
      std::span<const uint8_t> codes = matrix.panel(row / 16);
      for (const auto& segment : matrix.segments) {
        for (int32_t column = segment.first_column; column < segment.first_column + segment.columns; column += 16) {
          const bool is_float = segment.code.family == Family::kFloat16;
          if (!is_float) {
            kvq::weights::decode_tile(any_codebook(segment.code), codes.first(segment.code.tile_bytes()), levels);
          }
          for (int32_t i = 0; i < 256; ++i) {
            const int32_t r = row + (is_float ? i % 16 : i / 16);
            const int32_t c = column + (is_float ? i / 16 : i % 16);
            if (r >= matrix.out) continue;
            double& weight = rows[static_cast<size_t>(r) * in + static_cast<size_t>(c)];
            if (is_float) {
              uint16_t half = 0;
              std::memcpy(&half, codes.data() + 2 * i, 2);
              weight = kvq::from_float16(half);
            } else {
              const double scale = double{matrix.scale} * kvq::from_float16(matrix.row_scales[static_cast<size_t>(r)]);
              weight = scale * double{any_codebook(segment.code).unit} * levels[static_cast<size_t>(i)];
            }
          }
          codes = codes.subspan(segment.code.tile_bytes());
        }
      }
    }
    return rows;
  }

  Matrix matrix;
};

std::vector<float> normal_rows(int32_t rows, int32_t in) {
  std::mt19937 random(static_cast<unsigned>(in));
  std::normal_distribution<float> normal;
  std::vector<float> x;
  for (int32_t i = 0; i < rows * in; ++i) x.push_back(normal(random));
  return x;
}

// A row of activations after rotation and, optionally, rounding to 127ths of the largest of 256.
std::vector<double> seen_by_matrix(const Matrix& matrix, const float* x, bool rounded) {
  std::vector<float> row(x, x + matrix.in);
  if (matrix.scheme.family == Family::kFloat16) return {row.begin(), row.end()};
  kvq::weights::rotate(matrix.signs, row);
  std::vector<double> seen(row.begin(), row.end());
  for (size_t first = 0; rounded && first < row.size(); first += 256) {
    const size_t end = std::min(first + 256, row.size());
    float largest = 0.0F;
    for (size_t i = first; i < end; ++i) largest = std::max(largest, std::fabs(row[i]));
    const float scale = largest / 127.0F;
    for (size_t i = first; i < end; ++i) seen[i] = double{scale} * std::nearbyint(row[i] / scale);
  }
  return seen;
}

struct Runner {
  std::vector<float> run(const KernelTable& table, const Matrix& matrix, const float* x, int32_t batch) {
    std::vector<float> y(static_cast<size_t>(batch) * static_cast<size_t>(matrix.out));
    const Matrix* matrices[] = {&matrix};
    void* ys[] = {y.data()};
    kvq::cpu::linear({matrices, x, KVQ_F32, batch, ys, KVQ_F32}, *table.linear, any_codebook, parallel, pool);
    return y;
  }

  kvq::Allocator allocator{{}, 0};
  kvq::Parallel parallel{2, nullptr, nullptr};
  kvq::ScratchPool pool{allocator};
};

// Largest difference from the sums in double, relative to the random-walk size of the sums.
double worst_error(const AnyMatrix& any, const std::vector<float>& x, int32_t rows, bool rounded,
                   const std::vector<float>& y) {
  const Matrix& matrix = any.matrix;
  const auto in = static_cast<size_t>(matrix.in);
  const auto out = static_cast<size_t>(matrix.out);
  const std::vector<double> weights = any.weights();
  double worst = 0.0;
  for (size_t n = 0; n < static_cast<size_t>(rows); ++n) {
    const std::vector<double> seen = seen_by_matrix(matrix, x.data() + n * in, rounded);
    for (size_t r = 0; r < out; ++r) {
      double sum = matrix.bias.empty() ? 0.0 : matrix.bias[r];
      double squares = 1e-30;
      for (size_t i = 0; i < in; ++i) {
        const double term = weights[r * in + i] * seen[i];
        sum += term;
        squares += term * term;
      }
      worst = std::max(worst, std::fabs(sum - y[n * out + r]) / std::sqrt(squares));
    }
  }
  return worst;
}

bool same_rows(const std::vector<float>& some, const std::vector<float>& all) {
  return std::memcmp(some.data(), all.data(), some.size() * sizeof(float)) == 0;
}

void check_scheme(Runner& runner, const Scheme& scheme, const Shape& shape) {
  CAPTURE(std::string(kvq::weights::scheme_name(scheme).data()));
  CAPTURE(shape.out);
  CAPTURE(shape.in);
  CAPTURE(codebook_seed);
  const AnyMatrix any(runner.allocator, scheme, shape, static_cast<unsigned>(scheme.quarters / 2));
  const std::vector<float> x = normal_rows(kMostRows, shape.in);
  const auto tables = kvq::cpu::available_tables();
  const std::vector<float> first = runner.run(*tables.front(), any.matrix, x.data(), kMostRows);
  // Integers are summed exactly; FP16 products are summed in FP32 over a whole row.
  const double rounding = scheme.family == Family::kFloat16 ? 2e-5 : 2e-6;
  CHECK(worst_error(any, x, 10, true, first) < rounding);
  CHECK(worst_error(any, x, 10, false, first) < 0.05);
  for (const KernelTable* table : tables) {
    CAPTURE(std::string(table->name));
    std::vector<float> all = first;
    if (scheme.family == Family::kFloat16) {  // products and sums may be fused
      all = runner.run(*table, any.matrix, x.data(), kMostRows);
      CHECK(worst_error(any, x, 10, true, all) < rounding);
    }
    for (const int32_t batch : kBatches) {
      CAPTURE(batch);
      CHECK(same_rows(runner.run(*table, any.matrix, x.data(), batch), all));
    }
  }
}

}  // namespace

TEST_CASE("products with packed matrices are those with their levels, the same on every instruction set and batch") {
  Runner runner;
  for (codebook_seed = 0; codebook_seed < 3; ++codebook_seed) {
    for (const Scheme& scheme : kvq::weights::kSchemes) {
      // Only these have several kernels for a width.
      if (codebook_seed > 0 && scheme.family != Family::kTcq && scheme.family != Family::kTcx) continue;
      for (const Shape& shape : kShapes) check_scheme(runner, scheme, shape);
    }
  }
  codebook_seed = 0;
}

TEST_CASE("matrices that share their inputs are multiplied at once, in any type") {
  Runner runner;
  const AnyMatrix a(runner.allocator, *kvq::weights::parse_scheme("nuq-3"), {48, 320}, 1);
  const AnyMatrix b(runner.allocator, *kvq::weights::parse_scheme("tcq-2.25"), {33, 320}, 2);
  const AnyMatrix c(runner.allocator, *kvq::weights::parse_scheme("fp16"), {500, 320}, 4);
  const Matrix* matrices[] = {&a.matrix, &b.matrix, &c.matrix};
  constexpr int32_t kBatch = 5;
  const std::vector<float> numbers = normal_rows(kBatch, 320);
  for (const kvq_dtype dtype : {KVQ_F32, KVQ_F16, KVQ_BF16}) {
    std::vector<char> x(numbers.size() * kvq::dtype_bytes(dtype) + 1);
    std::vector<float> rounded(numbers.size());
    kvq::write_floats(numbers.data(), kBatch * 320, x.data() + 1, dtype, 0);
    kvq::read_floats(x.data() + 1, dtype, 0, kBatch * 320, rounded.data());
    for (const KernelTable* table : kvq::cpu::available_tables()) {
      std::vector<char> y[3];
      std::vector<char> expected[3];
      for (size_t i = 0; i < 3; ++i) {
        const std::vector<float> one = runner.run(*table, *matrices[i], rounded.data(), kBatch);
        y[i].resize(one.size() * kvq::dtype_bytes(dtype) + 1);
        expected[i] = y[i];
        kvq::write_floats(one.data(), static_cast<int32_t>(one.size()), expected[i].data() + 1, dtype, 0);
      }
      void* ys[] = {y[0].data() + 1, y[1].data() + 1, y[2].data() + 1};
      kvq::cpu::linear({matrices, x.data() + 1, dtype, kBatch, ys, dtype}, *table->linear, any_codebook,
                       runner.parallel, runner.pool);
      for (size_t i = 0; i < 3; ++i) CHECK((y[i] == expected[i]));
    }
  }
}

TEST_CASE("a row with a number that is not finite gives NaN and leaves other rows alone") {
  Runner runner;
  for (const char* scheme : {"nuq-2", "fp16"}) {
    const AnyMatrix any(runner.allocator, *kvq::weights::parse_scheme(scheme), {32, 576}, 1);
    for (const KernelTable* table : kvq::cpu::available_tables()) {
      for (const float strange : {HUGE_VALF, -HUGE_VALF, std::numeric_limits<float>::quiet_NaN()}) {
        std::vector<float> x = normal_rows(3, 576);
        const std::vector<float> before = runner.run(*table, any.matrix, x.data(), 3);
        x[576 + 570] = strange;
        const std::vector<float> y = runner.run(*table, any.matrix, x.data(), 3);
        for (size_t i = 0; i < 32; ++i) {
          CHECK_EQ(y[i], before[i]);
          CHECK(std::isnan(y[32 + i]));
          CHECK_EQ(y[64 + i], before[64 + i]);
        }
      }
    }
  }
}

TEST_CASE("rows of zeros and of numbers too small for a scale give the bias") {
  Runner runner;
  const AnyMatrix any(runner.allocator, *kvq::weights::parse_scheme("vq-2"), {32, 256}, 2);
  for (const KernelTable* table : kvq::cpu::available_tables()) {
    for (const float tiny : {0.0F, -0.0F, 1e-45F, 3e-44F, 1e-42F}) {
      const std::vector<float> x(256, tiny);
      const std::vector<float> y = runner.run(*table, any.matrix, x.data(), 1);
      for (size_t i = 0; i < 32; ++i) CHECK_EQ(y[i], doctest::Approx(any.matrix.bias[i]));
    }
  }
}

TEST_CASE("a second call takes no memory") {
  Runner runner;
  const AnyMatrix any(runner.allocator, *kvq::weights::parse_scheme("tcx-3"), {32, 512}, 2);
  const std::vector<float> x = normal_rows(9, 512);
  const KernelTable& table = *kvq::cpu::available_tables().front();
  runner.run(table, any.matrix, x.data(), 9);
  const uint64_t peak = runner.allocator.peak_bytes();
  const uint64_t bytes = runner.allocator.bytes();
  runner.run(table, any.matrix, x.data(), 9);
  CHECK_EQ(runner.allocator.bytes(), bytes);
  CHECK_EQ(runner.allocator.peak_bytes(), peak);
}

}  // namespace linear_kernels_test
