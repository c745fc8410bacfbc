// The dense operations of every device that is here, against float64.
#include "llama/device.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <numbers>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "llama/cpu_device.h"
#include "llama/cuda_module.h"
#include "llama/error.h"
#include "stored.h"
#include "support/device.h"

namespace device_test {
namespace {

using Numbers = std::vector<float>;

struct NamedDevice {
  std::string name;
  std::unique_ptr<llama::Device> device;
};

class Devices {
 public:
  Devices() {
    devices_.push_back({"CPU", llama::make_cpu_device(threads_)});
    const std::string reason = kvq_test::why_no_cuda();
    if (reason.empty()) {
      devices_.push_back({"GPU", llama::make_cuda_device(0)});
    } else {
      MESSAGE("skipped on the GPU: " << reason);
    }
  }
  auto begin() const { return devices_.begin(); }
  auto end() const { return devices_.end(); }

 private:
  llama::ThreadPool threads_{2};
  std::vector<NamedDevice> devices_;
};

Numbers random_numbers(size_t n, uint64_t seed, float bound = 1.0f) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> uniform(-bound, bound);
  Numbers numbers(n);
  for (float& number : numbers) number = uniform(random);
  return numbers;
}

Numbers read(llama::Device& device, const llama::Array& array) {
  llama::Array host;
  const std::span<const float> numbers = device.read(array.all(), host);
  return {numbers.begin(), numbers.end()};
}

// `rows` tokens, `in` and `out` features.
struct Shape {
  size_t rows, in, out;
};

constexpr std::array kShapes{Shape{1, 24, 50},    Shape{1, 2048, 1536},  Shape{3, 40, 24},
                             Shape{32, 257, 129}, Shape{75, 1024, 3001}, Shape{300, 64, 64}};

/// y + x·Wᵀ + b. An error as of rounding to FP32 stays below a millionth of the sum of magnitudes, unless terms have
/// one sign; one as of shorter formats would not.
void check_product(const Shape& shape, const Numbers& x, const Numbers& weight, const Numbers& bias,
                   const Numbers& before, const Numbers& result, double most = 1e-6) {
  REQUIRE(result.size() == shape.rows * shape.out);
  double worst = 0.0;
  for (size_t i = 0; i < shape.rows; ++i) {
    for (size_t j = 0; j < shape.out; ++j) {
      const size_t at = i * shape.out + j;
      double sum = before.empty() ? 0.0 : double{before[at]};
      sum += bias.empty() ? 0.0 : double{bias[j]};
      double magnitude = 1.0;
      for (size_t k = 0; k < shape.in; ++k) {
        const double term = double{x[i * shape.in + k]} * double{weight[j * shape.in + k]};
        sum += term;
        magnitude += std::abs(term);
      }
      worst = std::max(worst, std::abs(double{result[at]} - sum) / magnitude);
    }
  }
  CHECK(worst < most);
}

}  // namespace

TEST_CASE("what is uploaded is read back, whole or in part") {
  const Devices devices;
  for (const NamedDevice& named : devices) {
    CAPTURE(named.name);
    llama::Device& device = *named.device;
    const Numbers numbers = random_numbers(1000, 1);
    const llama::Array array = device.upload(numbers);
    llama::Array host;
    for (const auto& [begin, n] : {std::pair<size_t, size_t>{7, 20}, {0, 1000}, {990, 10}}) {
      const std::span<const float> part = device.read(array.all().subspan(begin, n), host);
      CHECK(std::equal(part.begin(), part.end(), numbers.begin() + static_cast<ptrdiff_t>(begin),
                       numbers.begin() + static_cast<ptrdiff_t>(begin + n)));
    }
  }
}

TEST_CASE("embedding copies the rows of its tokens") {
  const Devices devices;
  for (const NamedDevice& named : devices) {
    CAPTURE(named.name);
    llama::Device& device = *named.device;
    for (const size_t width : {size_t{24}, size_t{1500}}) {
      constexpr int64_t kRows = 90;
      const Numbers numbers = random_numbers(kRows * width, 2);
      const llama::Matrix embedding{kRows, static_cast<int64_t>(width), llama::numbers_of(device.upload(numbers))};
      // The second list is the longer one.
      for (const std::vector<int32_t>& tokens : {std::vector<int32_t>{89}, std::vector<int32_t>{0, 89, 5, 5, 17}}) {
        const llama::Array x = device.allocate(tokens.size() * width);
        device.embed(embedding, tokens, 1.0F, x.first(x.size));
        const Numbers result = read(device, x);
        for (size_t i = 0; i < result.size(); ++i) {
          REQUIRE(result[i] == numbers[static_cast<size_t>(tokens[i / width]) * width + i % width]);
        }
      }
    }
  }
}

TEST_CASE("rows are normed by their root mean square, in place too") {
  constexpr float kEpsilon = 1e-3f;
  const Devices devices;
  for (const NamedDevice& named : devices) {
    CAPTURE(named.name);
    llama::Device& device = *named.device;
    for (const size_t width : std::array<size_t, 6>{8, 24, 128, 1024, 1500, 5120}) {
      CAPTURE(width);
      constexpr size_t kRows = 37;
      const Numbers x = random_numbers(kRows * width, 3, 0.1f);
      const Numbers weight = random_numbers(width, 4);
      const llama::Array input = device.upload(x);
      const llama::Array norm = device.upload(weight);
      const llama::Array output = device.allocate(x.size());
      device.rms_norm(input.all(), norm, kEpsilon, output.first(x.size()));
      device.rms_norm(input.all(), norm, kEpsilon, input.first(x.size()));
      const Numbers result = read(device, output);
      CHECK(read(device, input) == result);
      double worst = 0.0;
      for (size_t row = 0; row < kRows; ++row) {
        double squares = 0.0;
        for (size_t i = 0; i < width; ++i) squares += std::pow(double{x[row * width + i]}, 2);
        const double rms = std::sqrt(squares / static_cast<double>(width) + double{kEpsilon});
        for (size_t i = 0; i < width; ++i) {
          const double expected = double{x[row * width + i]} / rms * double{weight[i]};
          worst = std::max(worst, std::abs(double{result[row * width + i]} - expected));
        }
      }
      CHECK(worst < 2e-6);
    }
  }
}

TEST_CASE("products are those of float64, with and without a bias, alone and added") {
  const Devices devices;
  for (const NamedDevice& named : devices) {
    CAPTURE(named.name);
    llama::Device& device = *named.device;
    for (const Shape& shape : kShapes) {
      CAPTURE(shape.rows);
      CAPTURE(shape.in);
      CAPTURE(shape.out);
      const Numbers x = random_numbers(shape.rows * shape.in, 5);
      const Numbers weight = random_numbers(shape.out * shape.in, 6);
      const Numbers before = random_numbers(shape.rows * shape.out, 7);
      const llama::Array input = device.upload(x);
      llama::Linear linear;
      linear.weight = {static_cast<int64_t>(shape.out), static_cast<int64_t>(shape.in),
                       llama::numbers_of(device.upload(weight))};
      for (const Numbers& bias : {Numbers{}, random_numbers(shape.out, 8)}) {
        if (!bias.empty()) linear.bias = device.upload(bias);
        const llama::Array y = device.upload(before);
        device.apply_and_add(linear, input.all(), y.first(y.size));
        check_product(shape, x, weight, bias, before, read(device, y));
        device.apply(linear, input.all(), y.first(y.size));
        check_product(shape, x, weight, bias, {}, read(device, y));
      }
    }
  }
}

TEST_CASE("matrices as files hold them are embedded, multiplied with and read as floats are, in any number of rows") {
  const Devices devices;
  for (const NamedDevice& named : devices) {
    CAPTURE(named.name);
    llama::Device& device = *named.device;
    std::vector<Shape> shapes{{1, 1, 1}, {5, 24, 50}, {2, 2048, 130}, {33, 40, 24}, {70, 264, 129}, {9, 257, 31}};
    for (size_t rows = 3; rows < 19; ++rows) shapes.push_back({rows, 288, 37});
    if (device.kind() == KVQ_DEVICE_CUDA) {  // more than is multiplied at once
      shapes.push_back({40, 64, 150001});
      shapes.push_back({600, 64, 12001});
    }
    for (const kvq_dtype dtype : kDTypes) {
      CAPTURE(dtype);
      for (const Shape& shape : shapes) {
        CAPTURE(shape.rows);
        CAPTURE(shape.in);
        CAPTURE(shape.out);
        const Stored stored = Stored::random(dtype, shape.out * shape.in, 11);
        const Numbers weight = stored.floats();
        const Numbers x = random_numbers(shape.rows * shape.in, 12);
        const Numbers before = random_numbers(shape.rows * shape.out, 13);
        const llama::Array input = device.upload(x);
        const llama::Linear linear{{static_cast<int64_t>(shape.out), static_cast<int64_t>(shape.in),
                                    device.place(stored.numbers(), weight.size())},
                                   {}};
        const llama::Array y = device.upload(before);
        device.apply_and_add(linear, input.all(), y.first(y.size));
        check_product(shape, x, weight, {}, before, read(device, y));
        device.apply(linear, input.all(), y.first(y.size));
        check_product(shape, x, weight, {}, {}, read(device, y));
        CHECK(device.read(linear.weight) == weight);
        const auto last = static_cast<int32_t>(shape.out) - 1;
        const llama::Array row = device.allocate(shape.in);
        device.embed(linear.weight, std::array{last}, 1.0F, row.first(shape.in));
        CHECK(read(device, row) == Numbers(weight.end() - static_cast<ptrdiff_t>(shape.in), weight.end()));
      }
    }
  }
}

TEST_CASE("products of inputs of any magnitude scale with them") {
  const Devices devices;
  for (const NamedDevice& named : devices) {
    CAPTURE(named.name);
    llama::Device& device = *named.device;
    constexpr size_t kIn = 264;
    constexpr size_t kOut = 50;
    for (const kvq_dtype dtype : kDTypes) {
      CAPTURE(dtype);
      const Stored stored = Stored::random(dtype, kOut * kIn, 14);
      const llama::Linear linear{{kOut, kIn, device.place(stored.numbers(), kOut * kIn)}, {}};
      const Numbers weight = stored.floats();
      for (const size_t rows : {size_t{3}, size_t{21}}) {
        CAPTURE(rows);
        // Two inputs in a thousand are as much larger as those of models may be.
        Numbers x = random_numbers(rows * kIn, 15);
        for (size_t i = 0; i < x.size(); i += 500) x[i] *= 1000.0f;
        // All terms of the first sum have one sign, and so would errors if 16 bits of these numbers were all that
        // counts.
        for (size_t i = 0; i < kIn; ++i) x[i] = std::copysign(1.0f + 0x1p-17f, weight[i]);
        Numbers scaled = x;
        const auto exponent = [rows](size_t row) { return static_cast<int>(row * 140 / rows) - 70; };
        for (size_t i = 0; i < x.size(); ++i) scaled[i] = std::ldexp(x[i], exponent(i / kIn));
        const auto last = static_cast<ptrdiff_t>((rows - 1) * kIn);
        std::fill(x.begin() + last, x.end(), 0.0f);
        std::fill(scaled.begin() + last, scaled.end(), 0.0f);

        const llama::Array y = device.allocate(rows * kOut);
        device.apply(linear, device.upload(x).all(), y.first(y.size));
        const Numbers expected = read(device, y);
        check_product({rows, kIn, kOut}, x, weight, {}, {}, expected, 3e-6);
        device.apply(linear, device.upload(scaled).all(), y.first(y.size));
        const Numbers result = read(device, y);
        for (size_t i = 0; i < result.size(); ++i) {
          REQUIRE(result[i] == std::ldexp(expected[i], exponent(i / kOut)));
        }
      }
    }
  }
}

TEST_CASE("gates are those of float64") {
  const auto silu = [](double x) { return x / (1.0 + std::exp(-x)); };
  const auto gelu = [](double x) {
    // 1 + tanh(y) without cancellation.
    return x / (1.0 + std::exp(-2.0 * std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
  };
  const Devices devices;
  for (const NamedDevice& named : devices) {
    CAPTURE(named.name);
    llama::Device& device = *named.device;
    constexpr size_t kWidth = 333;
    for (const bool is_gelu : {false, true}) {
      CAPTURE(is_gelu);
      const Numbers gate = random_numbers(3 * kWidth, 9, is_gelu ? 4.0f : 60.0f);
      const Numbers up = random_numbers(3 * kWidth, 10);
      const llama::Array gates = device.upload(gate);
      const llama::Array ups = device.upload(up);
      device.gate(is_gelu ? llama::Activation::kGelu : llama::Activation::kSilu, 3, gates.first(gates.size), ups.all());
      const Numbers result = read(device, gates);
      for (size_t i = 0; i < gate.size(); ++i) {
        const double expected = (is_gelu ? gelu(gate[i]) : silu(gate[i])) * double{up[i]};
        // 1 + tanh loses digits where it is nearly 0.
        const double rounding = is_gelu ? 1e-6 : 1e-30;
        REQUIRE(std::abs(double{result[i]} - expected) <= 2e-6 * std::abs(expected) + rounding);
      }
    }
  }
}

TEST_CASE("sums, soft caps and scaled embeddings are those of float64") {
  const Devices devices;
  for (const NamedDevice& named : devices) {
    CAPTURE(named.name);
    llama::Device& device = *named.device;
    const Numbers numbers = random_numbers(700, 11, 90.0f);
    const Numbers more = random_numbers(700, 12);
    const llama::Array sums = device.upload(numbers);
    device.add(device.upload(more).all(), sums.first(sums.size));
    const Numbers summed = read(device, sums);
    device.softcap(30.0f, sums.first(sums.size));
    const Numbers capped = read(device, sums);
    const llama::Matrix embedding{7, 100, llama::numbers_of(device.upload(numbers))};
    const llama::Array row = device.allocate(100);
    device.embed(embedding, std::array{5}, 2.5F, row.first(row.size));
    const Numbers scaled = read(device, row);
    for (size_t i = 0; i < numbers.size(); ++i) {
      REQUIRE(summed[i] == numbers[i] + more[i]);
      REQUIRE(capped[i] == doctest::Approx(30.0 * std::tanh(double{summed[i]} / 30.0)).epsilon(1e-6));
      if (i < scaled.size()) REQUIRE(scaled[i] == 2.5F * numbers[500 + i]);
    }
  }
}

TEST_CASE("memory that a GPU does not have is an error with CUDA's reason, and no more than that") {
  const Devices devices;
  for (const NamedDevice& named : devices) {
    llama::Device& device = *named.device;
    if (device.kind() != KVQ_DEVICE_CUDA) continue;
    CHECK_THROWS_WITH_AS(static_cast<void>(device.allocate(size_t{1} << 50)), doctest::Contains("cudaMalloc of "),
                         llama::Error);
    CHECK(read(device, device.upload({1.0f, 2.0f})) == Numbers{1.0f, 2.0f});
  }
}

}  // namespace device_test
