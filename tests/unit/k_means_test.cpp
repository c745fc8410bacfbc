#include "training/centres/k_means.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "backend/cpu/training/centre_sample.h"
#include "support/allocator.h"
#include "support/random.h"

namespace k_means_test {
namespace {

using kvq::CentreVectors;
using kvq::centres::KMeans;
using kvq::centres::KMeansOptions;
using kvq::centres::nearest_kernels;
using kvq::centres::NearestKernels;
using kvq::cpu::HostCentreSample;
using kvq_test::test_allocator;

struct Data {
  Data(int32_t n_, int32_t dim_) : n(n_), dim(dim_), numbers(static_cast<size_t>(n_) * static_cast<size_t>(dim_)) {}

  CentreVectors vectors() const { return {numbers.data(), n, dim}; }

  int32_t n;
  int32_t dim;
  std::vector<float> numbers;
};

/// Normal vectors around `spots` points.
Data spotted(int32_t n, int32_t dim, int32_t spots, double spread, uint64_t seed) {
  Data data(n, dim);
  kvq_test::Random random(seed);
  std::vector<double> places(static_cast<size_t>(spots) * static_cast<size_t>(dim));
  for (double& place : places) place = random.normal();
  for (int32_t t = 0; t < n; ++t) {
    const auto spot = static_cast<size_t>(random.integer(0, spots - 1));
    for (int32_t i = 0; i < dim; ++i) {
      data.numbers[static_cast<size_t>(t * dim + i)] = static_cast<float>(
          places[spot * static_cast<size_t>(dim) + static_cast<size_t>(i)] + spread * random.normal());
    }
  }
  return data;
}

std::vector<float> find(const Data& data, int32_t centres, const KMeansOptions& options, int32_t n_threads = 1,
                        const NearestKernels& kernels = *nearest_kernels().front()) {
  kvq::Parallel parallel(n_threads, nullptr, nullptr);
  HostCentreSample sample(test_allocator(), parallel, centres, data.vectors(), kernels);
  KMeans k_means(test_allocator(), parallel, sample, centres, data.vectors());
  kvq::Vector<float> found(kvq::StlAllocator<float>{test_allocator()});
  REQUIRE(k_means.find(options, kvq::TrainingProgress(nullptr, nullptr), found));
  return {found.begin(), found.end()};
}

/// Lloyd iterations until convergence.
KMeansOptions to_the_end(uint64_t seed = 1) { return {.rounds = 1000, .tolerance = 0.0, .seed = seed}; }

double squared_distance(const float* x, const float* y, int32_t dim) {
  double sum = 0.0;
  for (int32_t i = 0; i < dim; ++i) sum += (double{x[i]} - double{y[i]}) * (double{x[i]} - double{y[i]});
  return sum;
}

struct Nearest {
  std::vector<size_t> centre;  // one per vector
  double error = 0.0;          // Σ squared distances
};

Nearest nearest(const Data& data, const std::vector<float>& centres) {
  Nearest result;
  const auto dim = static_cast<size_t>(data.dim);
  for (size_t t = 0; t < static_cast<size_t>(data.n); ++t) {
    size_t best = 0;
    double least = HUGE_VAL;
    for (size_t c = 0; c * dim < centres.size(); ++c) {
      const double distance = squared_distance(&data.numbers[t * dim], &centres[c * dim], data.dim);
      if (distance < least) best = c;
      least = std::min(least, distance);
    }
    result.centre.push_back(best);
    result.error += least;
  }
  return result;
}

std::vector<double> mean(const Data& data, const std::vector<size_t>& owners, size_t owner) {
  const auto dim = static_cast<size_t>(data.dim);
  std::vector<double> sums(dim);
  double count = 0.0;
  for (size_t t = 0; t < owners.size(); ++t) {
    if (owners[t] != owner) continue;
    for (size_t i = 0; i < dim; ++i) sums[i] += double{data.numbers[t * dim + i]};
    count += 1.0;
  }
  for (double& sum : sums) sum /= count;
  return sums;
}

}  // namespace

TEST_CASE("one centre is the mean") {
  const Data data = spotted(1001, 24, 5, 1.0, 3);
  const std::vector<float> centres = find(data, 1, {});
  const std::vector<double> expected = mean(data, std::vector<size_t>(1001, 0), 0);
  for (size_t i = 0; i < expected.size(); ++i) CHECK(centres[i] == static_cast<float>(expected[i]));
}

TEST_CASE("in the end every centre is the mean of the vectors that it is the nearest to") {
  for (const int32_t k : {2, 7, 16, 33}) {
    CAPTURE(k);
    const Data data = spotted(600, 16, 12, 0.5, static_cast<uint64_t>(k));
    const std::vector<float> centres = find(data, k, to_the_end());
    const Nearest owners = nearest(data, centres);
    for (size_t c = 0; c < static_cast<size_t>(k); ++c) {
      CAPTURE(c);
      REQUIRE(std::count(owners.centre.begin(), owners.centre.end(), c) > 0);
      const std::vector<double> expected = mean(data, owners.centre, c);
      for (size_t i = 0; i < 16; ++i) CHECK(double{centres[c * 16 + i]} == doctest::Approx(expected[i]).epsilon(1e-6));
    }
  }
}

TEST_CASE("no round makes the error grow") {
  const Data data = spotted(900, 32, 60, 0.7, 8);
  double before = HUGE_VAL;
  for (int32_t rounds = 1; rounds < 15; ++rounds) {
    const double error = nearest(data, find(data, 40, {.rounds = rounds, .tolerance = 0.0, .seed = 4})).error;
    CHECK(error <= before * (1.0 + 1e-6));
    before = error;
  }
}

TEST_CASE("as many centres as far-apart spots find them all") {
  const Data data = spotted(4000, 40, 30, 0.05, 9);
  const double error = nearest(data, find(data, 30, {})).error;
  // Each number is 0.05 from its spot; a spot that shares its centre with another would cost about 2 · 40 a vector.
  CHECK(error < 1.05 * 4000 * 40 * 0.05 * 0.05);
}

TEST_CASE("centres are the same bits on any number of threads and every instruction set") {
  const Data data = spotted(70 * 37 + 5, 136, 37, 1.0, 10);  // more vectors than the first sample
  const std::vector<float> expected = find(data, 37, {});
  for (const NearestKernels* kernels : nearest_kernels()) {
    CAPTURE(kernels->name);
    CHECK(find(data, 37, {}, 1, *kernels) == expected);
    CHECK(find(data, 37, {}, 3, *kernels) == expected);
  }
  CHECK(find(data, 37, {.seed = 2}) != expected);
}

TEST_CASE("the nearest centre is the first of the nearest, on every instruction set") {
  kvq_test::Random random(11);
  for (const int32_t n : {1, 3, 16, 17, 100, 256}) {
    for (const int32_t dim : {8, 24, 128}) {
      const auto width = static_cast<size_t>(dim);
      Data data(21, dim);
      for (float& x : data.numbers) x = static_cast<float>(random.normal());
      std::vector<float> centres(static_cast<size_t>(n) * width);
      for (float& c : centres) c = static_cast<float>(random.normal());
      // Two vectors coincide with duplicated centres: in the same lane of a register and in another one.
      const auto centre = [&](int32_t c) { return centres.begin() + c * dim; };
      if (n > 16) std::copy_n(centre(3), width, centre(16));
      if (n > 17) std::copy_n(centre(1), width, centre(17));
      std::copy_n(centre(std::min(n - 1, 3)), width, data.numbers.begin());
      std::copy_n(centre(std::min(n - 1, 1)), width, data.numbers.begin() + dim);
      const auto padded = static_cast<size_t>(kvq::centres::padded(n));
      std::vector<float> packed(padded * width);
      std::vector<float> half_norms(padded, HUGE_VALF);
      for (size_t c = 0; c < static_cast<size_t>(n); ++c) {
        double norm = 0.0;
        for (size_t i = 0; i < width; ++i) {
          packed[(c / 16 * width + i) * 16 + c % 16] = centres[c * width + i];
          norm += double{centres[c * width + i]} * double{centres[c * width + i]};
        }
        half_norms[c] = static_cast<float>(norm / 2);
      }
      const Nearest expected = nearest(data, centres);
      for (const NearestKernels* kernels : nearest_kernels()) {
        CAPTURE(kernels->name);
        std::vector<uint8_t> found(21);
        kernels->nearest({packed.data(), half_norms.data(), n, dim}, data.numbers.data(), 21, found.data());
        for (size_t t = 0; t < 21; ++t) CHECK(found[t] == expected.centre[t]);
      }
    }
  }
}

TEST_CASE("with many equal vectors every different one gets a centre") {
  // 20 vectors, one of them repeated 980 times: centres that start on equal vectors must move.
  Data data(1000, 8);
  kvq_test::Random random(12);
  std::vector<float> different(20 * 8);
  for (float& x : different) x = static_cast<float>(random.normal());
  for (size_t t = 0; t < 1000; ++t) std::copy_n(&different[t % 50 < 49 ? 0 : t / 50 * 8], 8, &data.numbers[t * 8]);
  for (uint64_t seed = 1; seed < 6; ++seed) CHECK(nearest(data, find(data, 20, to_the_end(seed))).error == 0.0);
}

TEST_CASE("fewer different vectors than centres leave nothing") {
  Data data(100, 8);
  for (size_t t = 0; t < 100; ++t) data.numbers[t * 8] = static_cast<float>(t % 3);
  const std::vector<float> centres = find(data, 50, to_the_end());
  CHECK(std::all_of(centres.begin(), centres.end(), [](float c) { return std::isfinite(c); }));
  CHECK(nearest(data, centres).error == 0.0);
  const Data zeros(100, 8);
  CHECK(nearest(zeros, find(zeros, 50, to_the_end())).error == 0.0);
}

TEST_CASE("the error that k-means tells is that of the nearest centres, the energy that of none") {
  const Data data = spotted(700, 48, 10, 1.0, 13);
  kvq::Parallel parallel(2, nullptr, nullptr);
  HostCentreSample sample(test_allocator(), parallel, 9, data.vectors());
  KMeans k_means(test_allocator(), parallel, sample, 9, data.vectors());
  kvq::Vector<float> found(kvq::StlAllocator<float>{test_allocator()});
  REQUIRE(k_means.find({}, kvq::TrainingProgress(nullptr, nullptr), found));
  for (float& c : found) c *= 0.9F;
  const std::vector<float> nothing(48);
  CHECK(k_means.energy() == doctest::Approx(nearest(data, nothing).error).epsilon(1e-6));
  CHECK(k_means.error(found) == doctest::Approx(nearest(data, {found.begin(), found.end()}).error).epsilon(1e-6));
}

}  // namespace k_means_test
