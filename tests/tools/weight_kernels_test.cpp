// What is done with weights as a file holds them, on every instruction set of this machine, against float64.
#include "llama/weight_kernels.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "llama/cpu_device.h"
#include "llama/model.h"
#include "llama/safetensors.h"
#include "stored.h"
#include "support/scratch_directory.h"
#include "tiny_model.h"

namespace weight_kernels_test {
namespace {

using Numbers = std::vector<float>;

Numbers random_numbers(size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  Numbers numbers(n);
  for (float& number : numbers) number = uniform(random);
  return numbers;
}

/// Row · x in float64, and within it the largest error that FP32 sums may have.
void check_dot(double result, const float* row, const float* x, size_t n, double before) {
  double sum = before;
  double magnitude = 1.0;
  for (size_t i = 0; i < n; ++i) {
    sum += double{row[i]} * double{x[i]};
    magnitude += std::abs(double{row[i]} * double{x[i]});
  }
  REQUIRE(std::abs(result - sum) < 1e-6 * magnitude);
}

}  // namespace

TEST_CASE("every pattern of 16 bits widens to the same float on every instruction set, at an odd address") {
  std::vector<uint8_t> patterns;
  for (unsigned i = 0; i < 65536; ++i) {
    patterns.push_back(static_cast<uint8_t>(i));
    patterns.push_back(static_cast<uint8_t>(i >> 8));
  }
  for (const kvq_dtype dtype : {KVQ_F16, KVQ_BF16}) {
    const Stored stored(dtype, patterns);
    const Numbers expected = stored.floats();
    for (const llama::WeightKernels& kernels : llama::weight_kernels()) {
      CAPTURE(kernels.isa);
      Numbers floats(65536);
      kernels.widen(dtype, stored.data(), floats.size(), floats.data());
      const auto same = [](float a, float b) {
        return std::isnan(a) ? std::isnan(b) : std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
      };
      CHECK(std::ranges::equal(floats, expected, same));
    }
  }
}

TEST_CASE("widening writes as many floats as it is asked for") {
  for (const kvq_dtype dtype : kDTypes) {
    for (const llama::WeightKernels& kernels : llama::weight_kernels()) {
      for (size_t n = 0; n < 70; ++n) {
        const Stored stored = Stored::random(dtype, n, n);
        Numbers floats(n + 1, 7.0f);
        kernels.widen(dtype, stored.data(), n, floats.data());
        Numbers expected = stored.floats();
        expected.push_back(7.0f);
        REQUIRE(floats == expected);
      }
    }
  }
}

TEST_CASE("rows multiplied as they are stored give the products of float64 on every instruction set") {
  struct Shape {
    size_t rows, n;
  };
  for (const kvq_dtype dtype : kDTypes) {
    for (const Shape& shape : {Shape{1, 1}, Shape{3, 15}, Shape{8, 64}, Shape{9, 100}, Shape{21, 1037}}) {
      CAPTURE(shape.n);
      const Stored stored = Stored::random(dtype, shape.rows * shape.n, shape.n);
      const Numbers weights = stored.floats();
      const Numbers x = random_numbers(shape.n, 1);
      const Numbers before = random_numbers(shape.rows, 2);
      for (const llama::WeightKernels& kernels : llama::weight_kernels()) {
        CAPTURE(kernels.isa);
        Numbers product(shape.rows, std::nanf(""));
        Numbers sum = before;
        kernels.multiply(dtype, stored.data(), shape.rows, shape.n, x.data(), 0.0f, product.data());
        kernels.multiply(dtype, stored.data(), shape.rows, shape.n, x.data(), 1.0f, sum.data());
        for (size_t i = 0; i < shape.rows; ++i) {
          check_dot(product[i], weights.data() + i * shape.n, x.data(), shape.n, 0.0);
          check_dot(sum[i], weights.data() + i * shape.n, x.data(), shape.n, double{before[i]});
        }
      }
    }
  }
}

TEST_CASE("linear layers of stored weights are those of float64 for one row and many, on any number of threads") {
  constexpr size_t kOut = 131;
  constexpr size_t kIn = 1100;
  llama::ThreadPool one(1);
  llama::ThreadPool three(3);
  for (const kvq_dtype dtype : kDTypes) {
    const Stored stored = Stored::random(dtype, kOut * kIn, 3);
    const Numbers weights = stored.floats();
    const llama::Linear linear{{kOut, kIn, stored.numbers()}, {}};
    for (const size_t rows : {size_t{1}, size_t{2}, size_t{32}, size_t{33}}) {
      CAPTURE(rows);
      const Numbers x = random_numbers(rows * kIn, 4);
      const Numbers before = random_numbers(rows * kOut, 5);
      Numbers y = before;
      llama::multiply(one, linear, x, 1.0f, y);
      for (size_t i = 0; i < y.size(); ++i) {
        check_dot(y[i], weights.data() + i % kOut * kIn, x.data() + i / kOut * kIn, kIn, double{before[i]});
      }
      Numbers again = before;
      llama::multiply(three, linear, x, 1.0f, again);
      CHECK(again == y);
    }
  }
}

TEST_CASE("on the CPU a model's matrices stay in its file, which may be removed meanwhile") {
  for (const TinyLayout& layout : tiny_layouts()) {
    CAPTURE(layout.name);
    const ScratchDirectory directory;
    TinyModel(layout).write(directory);
    llama::Model model(directory.path(), 1);
    std::filesystem::remove(directory.path() / "model.safetensors");
    const llama::Weights& weights = model.weights();
    CHECK((weights.output.weight.numbers.data == weights.embedding.numbers.data) == layout.tied);
    for (const llama::LinearLayer& layer : llama::all_linear_layers(model.config())) {
      const llama::Linear& linear = model.linear(layer);
      CHECK(linear.weight.numbers.data != nullptr);
      CHECK(linear.bias.empty() == !layer.bias);
    }
    CHECK(model.device().read(weights.embedding).size() ==
          static_cast<size_t>(weights.embedding.rows * weights.embedding.columns));
  }
}

}  // namespace weight_kernels_test
