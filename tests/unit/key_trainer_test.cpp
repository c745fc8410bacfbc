// Training the codes of keys, against generic least squares and on data made of known codes.
#include "key_codes.h"

#include <doctest/doctest.h>

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <string>

#include "backend/cpu/training/host_training.h"
#include "core/error.h"
#include "training/commvq/key_trainer.h"

namespace key_trainer_test {

using namespace key_codes;

namespace {

double relative_error(const Codes& codes, const Floats& keys, int32_t n, const Indices& indices) {
  double error = 0.0;
  double energy = 0.0;
  const uint8_t* index = indices.data();
  for (int32_t t = 0; t < n; ++t) {
    std::vector<Complex> x = key_at(keys, codes.group, t);
    for (const Complex& each : x) energy += std::norm(each);
    for (int32_t stage = 0; stage < codes.stages; ++stage, index += 2) {
      for (int32_t j = 0; j < codes.group; ++j) x[static_cast<size_t>(j)] -= codes.centre(stage, index[0], index[1], j);
    }
    for (const Complex& each : x) error += std::norm(each);
  }
  return error / energy;
}

/// Keys with correlated channels, like real ones: a few factors, a mean, some noise.
Floats correlated(int32_t n, int32_t group, unsigned seed) {
  constexpr int32_t kFactors = 6;
  const auto width = static_cast<size_t>(2 * group);
  const Floats basis = normal(width * kFactors, seed);
  const Floats mean = normal(width, seed + 1);
  const Floats factors = normal(static_cast<size_t>(n * kFactors), seed + 2);
  Floats keys = normal(static_cast<size_t>(n) * width, seed + 3, 0.1F);
  for (size_t i = 0; i < keys.size(); ++i) {
    keys[i] += mean[i % width];
    for (size_t k = 0; k < kFactors; ++k) keys[i] += factors[i / width * kFactors + k] * basis[k * width + i % width];
  }
  return keys;
}

kvq::KeyTrainingData data_of(const Floats& keys, int32_t group) {
  const auto n = static_cast<int32_t>(keys.size() / static_cast<size_t>(2 * group));
  return {pairs_of(keys, group), nullptr, nullptr, n, group};
}

Codes train(const Floats& keys, int32_t stages, int32_t codes, int32_t group, bool refine,
            const kvq::KeyTrainingOptions& options = {}, int32_t threads = 1) {
  kvq::Parallel parallel(threads, nullptr, nullptr);
  kvq::cpu::HostTraining backend(parallel);
  kvq::KeyTrainer trainer(memory(), backend, codes, data_of(keys, group), options);
  kvq::Vector<float> z{kvq::StlAllocator<float>(memory())};
  REQUIRE(trainer.add_stages(stages, z));
  if (refine) REQUIRE(trainer.refine(z));
  return {stages, codes, group, Floats(z.begin(), z.end())};
}

double trained_error(const Codes& codes, const Floats& keys, int32_t beam = 1) {
  const auto n = static_cast<int32_t>(keys.size() / static_cast<size_t>(2 * codes.group));
  return relative_error(codes, keys, n, encode(codes.encoder(), pairs_of(keys, codes.group), n, beam));
}

}  // namespace

TEST_CASE("the M-step solves the least squares of hard, soft and weighted assignments") {
  constexpr int32_t kTokens = 50;
  constexpr int32_t kCodes = 4;
  constexpr int32_t kGroup = 3;
  const Floats keys = normal(2 * kTokens * kGroup, 10);
  Floats weights = normal(kTokens, 11);
  for (float& weight : weights) weight = std::fabs(weight);
  const Codes codes = random_codes(1, kCodes, kGroup, 12);

  Floats planar(static_cast<size_t>(kTokens) * 32, 0.0F);
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t j = 0; j < kGroup; ++j) {
      planar[t * 32 + j] = keys[2 * (t * kGroup + j)];
      planar[t * 32 + 16 + j] = keys[2 * (t * kGroup + j) + 1];
    }
  }
  kvq::Parallel parallel(2, nullptr, nullptr);
  kvq::cpu::HostTraining backend(parallel);
  kvq::KeyStatistics statistics(memory(), kCodes, kGroup);
  // At 1e-3 soft assignments underflow: everything belongs to the nearest centre.
  for (const float temperature : {0.0F, 5.0F, 0.5F, 1e-3F}) {
    for (const float* weight : {static_cast<const float*>(nullptr), static_cast<const float*>(weights.data())}) {
      CAPTURE(temperature);
      const std::span<const float> counted(weight, weight == nullptr ? 0 : kTokens);
      const auto sample = backend.make_key_sample(memory(), {planar, counted, kTokens, kGroup});
      if (temperature == 0.0F) {
        sample->assign_nearest(codes.encoder(), statistics);
      } else {
        const kvq::SoftKernel kernel(memory(), codes.encoder(), temperature);
        sample->assign_softly(codes.encoder(), kernel, kTokens, statistics);
      }
      // One row per token and centre, for real and imaginary part: unknowns x_0 … x_3, y_0 … y_3 of a pair.
      constexpr int32_t kRows = kTokens * kCodes * kCodes;
      Eigen::MatrixXd design = Eigen::MatrixXd::Zero(2 * kRows, 2 * kCodes);
      Eigen::MatrixXd target(2 * kRows, kGroup);
      double error = 0.0;
      for (int32_t t = 0; t < kTokens; ++t) {
        const std::vector<Complex> x = key_at(keys, kGroup, t);
        Eigen::MatrixXd w(kCodes, kCodes);
        Eigen::MatrixXd distances(kCodes, kCodes);
        for (int32_t i = 0; i < 16; ++i) distances(i / 4, i % 4) = distance(codes, 0, x, i / 4, i % 4);
        const double width = temperature == 0.0F ? 1e-6 : double{temperature};
        w = ((distances.minCoeff() - distances.array()) / width).exp();
        w *= (weight == nullptr ? 1.0 : double{weight[t]}) / w.sum();
        error += w.cwiseProduct(distances).sum();
        for (int32_t i = 0; i < 16; ++i) {
          const int32_t row = 2 * (16 * t + i);
          const double root = std::sqrt(w(i / 4, i % 4));
          design(row, i / 4) = design(row + 1, kCodes + i / 4) = root;
          design(row, kCodes + i % 4) = -root;
          design(row + 1, i % 4) += root;
          for (int32_t j = 0; j < kGroup; ++j) {
            target(row, j) = root * x[static_cast<size_t>(j)].real();
            target(row + 1, j) = root * x[static_cast<size_t>(j)].imag();
          }
        }
      }
      const double found = kvq::keys::assignment_error(statistics, codes.encoder(), sample->energy(kTokens));
      CHECK(found == doctest::Approx(error).epsilon(1e-4));
      const Eigen::MatrixXd expected = design.colPivHouseholderQr().solve(target);
      Floats z = codes.z;
      kvq::keys::fit_codes(statistics, 1e-9, z);
      for (int32_t c = 0; c < kCodes; ++c) {
        for (int32_t j = 0; j < kGroup; ++j) {
          const auto i = 2 * static_cast<size_t>(c * kGroup + j);
          CHECK(double{z[i]} == doctest::Approx(expected(c, j)).epsilon(1e-3));
          CHECK(double{z[i + 1]} == doctest::Approx(expected(kCodes + c, j)).epsilon(1e-3));
        }
      }
    }
  }
}

TEST_CASE("refinement solves the least squares of all stages") {
  constexpr int32_t kTokens = 80;
  constexpr int32_t kStages = 3;
  constexpr int32_t kCodes = 4;
  const Codes codes = random_codes(kStages, kCodes, 1, 13);
  const Floats keys = normal(2 * kTokens, 14);
  const Indices indices = encode(codes.encoder(), pairs_of(keys, 1), kTokens, 2);

  constexpr double kRidge = 0.5;
  constexpr int32_t kUnknowns = kStages * kCodes;
  Eigen::MatrixXcd design = Eigen::MatrixXcd::Zero(kTokens + kUnknowns, kUnknowns);
  Eigen::VectorXcd target(kTokens + kUnknowns);
  Floats planar(kTokens * 32, 0.0F);
  for (int32_t t = 0; t < kTokens; ++t) {
    const Complex key = target(t) = key_at(keys, 1, t)[0];
    for (int32_t stage = 0; stage < kStages; ++stage) {
      const uint8_t* index = indices.data() + 2 * (t * kStages + stage);
      design(t, stage * kCodes + index[0]) += 1.0;
      design(t, stage * kCodes + index[1]) += Complex(0, 1);
    }
    planar[static_cast<size_t>(t) * 32] = static_cast<float>(key.real());
    planar[static_cast<size_t>(t) * 32 + 16] = static_cast<float>(key.imag());
  }
  for (int32_t i = 0; i < kUnknowns; ++i) {
    design(kTokens + i, i) = std::sqrt(kRidge);
    target(kTokens + i) = std::sqrt(kRidge) * codes.at(i / kCodes, i % kCodes, 0);
  }
  const Eigen::VectorXcd expected = design.colPivHouseholderQr().solve(target);

  kvq::Parallel parallel(2, nullptr, nullptr);
  kvq::cpu::HostTraining backend(parallel);
  Floats z = codes.z;
  const auto sample = backend.make_key_sample(memory(), {planar, {}, kTokens, 1});
  sample->encode(codes.encoder(), 2);
  kvq::keys::refine_codes(memory(), *sample, codes.encoder(), kRidge, z);
  for (int32_t i = 0; i < kUnknowns; ++i) {
    CHECK(double{z[static_cast<size_t>(2 * i)]} == doctest::Approx(expected(i).real()).epsilon(1e-3));
    CHECK(double{z[static_cast<size_t>(2 * i + 1)]} == doctest::Approx(expected(i).imag()).epsilon(1e-3));
  }
}

TEST_CASE("data made of codes is learnt almost exactly") {
  constexpr int32_t kTokens = 2000;
  const Codes truth = random_codes(1, 2, 8, 15);
  Floats keys = normal(2 * kTokens * 8, 16, 1e-3F);
  for (int32_t i = 0; i < kTokens * 8; ++i) {
    const int32_t token = i / 8;
    const Complex centre = truth.centre(0, token % 2, token / 2 % 2, i % 8);
    keys[static_cast<size_t>(2 * i)] += static_cast<float>(centre.real());
    keys[static_cast<size_t>(2 * i + 1)] += static_cast<float>(centre.imag());
  }
  kvq::KeyTrainingOptions options;  // slow enough for the centres to separate one by one
  options.soft_iterations = 40;
  options.soft_share = 1.0F;
  for (const uint64_t seed : {1U, 2U, 3U}) {
    options.seed = seed;
    CHECK(trained_error(train(keys, 1, 2, 8, false, options), keys) < 1e-4);
  }
}

TEST_CASE("the error falls with every stage, with refinement, and on average with the beam") {
  const Floats keys = correlated(3000, 16, 17);
  const Codes four = train(keys, 4, 16, 16, false);
  double before = 1.0;
  for (int32_t stages = 1; stages <= 4; ++stages) {
    const Codes prefix{stages, 16, 16, Floats(four.z.begin(), four.z.begin() + stages * 2 * 16 * 16)};
    const double error = trained_error(prefix, keys);
    CHECK(error < 0.9 * before);
    before = error;
  }
  const Codes refined = train(keys, 4, 16, 16, true);
  CHECK(trained_error(refined, keys, 2) < trained_error(four, keys, 2));
  CHECK(trained_error(refined, keys, 2) < trained_error(refined, keys, 1));
  CHECK(trained_error(refined, keys, 4) < trained_error(refined, keys, 2));
}

TEST_CASE("errors after every stage are those of what its codes leave") {
  const Floats keys = correlated(2000, 16, 18);
  const Codes codes = train(keys, 5, 8, 16, true);
  kvq::Parallel parallel(1, nullptr, nullptr);
  kvq::cpu::HostTraining backend(parallel);
  kvq::KeyTrainingOptions options;
  options.held_out = 0.0F;
  const kvq::KeyTrainer trainer(memory(), backend, 8, data_of(keys, 16), options);
  const kvq::Vector<double> errors = trainer.stage_errors(codes.z);
  REQUIRE(errors.size() == 5);
  CHECK(errors.back() == doctest::Approx(trainer.error(codes.z)).epsilon(1e-6));
  const Indices indices = encode(codes.encoder(), pairs_of(keys, 16), 2000, options.beam);
  for (int32_t stages = 1; stages <= 5; ++stages) {
    const Codes prefix{stages, 8, 16, Floats(codes.z.begin(), codes.z.begin() + stages * 2 * 8 * 16)};
    Indices first;
    for (auto at = indices.begin(); at != indices.end(); at += 10) first.insert(first.end(), at, at + 2 * stages);
    CHECK(errors[static_cast<size_t>(stages - 1)] ==
          doctest::Approx(relative_error(prefix, keys, 2000, first)).epsilon(1e-5));
  }
}

TEST_CASE("at equal bits, larger groups have a lower error") {
  const Floats keys = correlated(3000, 32, 18);  // groups take the first of them
  double before = 1.0;
  for (const auto& [group, codes] : {std::pair{8, 2}, {16, 4}, {32, 16}}) {
    Floats part;
    for (size_t at = 0; at < keys.size(); at += 64) {
      part.insert(part.end(), keys.begin() + static_cast<ptrdiff_t>(at),
                  keys.begin() + static_cast<ptrdiff_t>(at) + 2 * group);
    }
    const double error = trained_error(train(part, 1, codes, group, false), part);
    CHECK(error < before);
    before = error;
  }
}

TEST_CASE("training is the same for any number of threads, and stages can be added later") {
  const Floats keys = correlated(1000, 8, 19);
  const Codes expected = train(keys, 3, 8, 8, true);
  CHECK(train(keys, 3, 8, 8, true, {}, 3).z == expected.z);
  CHECK(train(keys, 3, 8, 8, true, {}, 2).z == expected.z);

  kvq::Parallel parallel(2, nullptr, nullptr);
  kvq::cpu::HostTraining backend(parallel);
  kvq::KeyTrainer trainer(memory(), backend, 8, data_of(keys, 8), {});
  kvq::Vector<float> z{kvq::StlAllocator<float>(memory())};
  REQUIRE(trainer.add_stages(1, z));
  REQUIRE(trainer.add_stages(2, z));
  REQUIRE(trainer.refine(z));
  CHECK(Floats(z.begin(), z.end()) == expected.z);
}

TEST_CASE("an observer sees errors fall and can stop the training") {
  const Floats keys = correlated(1000, 8, 20);
  kvq::Parallel parallel(2, nullptr, nullptr);
  kvq::cpu::HostTraining backend(parallel);
  kvq::KeyTrainer trainer(memory(), backend, 8, data_of(keys, 8), {});
  kvq::Vector<float> z{kvq::StlAllocator<float>(memory())};
  std::vector<kvq::KeyTrainingProgress> seen;
  kvq::KeyTrainingObserver observer;
  observer.user = &seen;
  observer.observe = [](const kvq::KeyTrainingProgress& progress, void* user) {
    auto& list = *static_cast<std::vector<kvq::KeyTrainingProgress>*>(user);
    list.push_back(progress);
    return progress.stage < 2;
  };
  CHECK_FALSE(trainer.add_stages(4, z, observer));
  CHECK(z.size() == 2 * 2 * 8 * 8);
  REQUIRE(seen.size() > 3);
  CHECK(seen.back().stage == 2);
  CHECK(seen.back().error < seen.front().error);
}

TEST_CASE("tokens that count more are closer to their centres") {
  const Floats keys = normal(2 * 600 * 8, 21);
  Floats weights(600, 1.0F);
  std::fill_n(weights.begin(), 100, 50.0F);
  kvq::KeyTrainingData data = data_of(keys, 8);
  data.weights = weights.data();
  kvq::Parallel parallel(1, nullptr, nullptr);
  kvq::cpu::HostTraining backend(parallel);
  kvq::KeyTrainer trainer(memory(), backend, 4, data, {});
  kvq::Vector<float> z{kvq::StlAllocator<float>(memory())};
  REQUIRE(trainer.add_stages(2, z));
  const Codes weighted{2, 4, 8, Floats(z.begin(), z.end())};
  const Floats heavy(keys.begin(), keys.begin() + 100 * 16);
  CHECK(trained_error(weighted, heavy) < trained_error(train(keys, 2, 4, 8, false), heavy));
}

TEST_CASE("constant and zero data train to exact codes") {
  Floats same;
  const Floats one = normal(16, 22);
  for (int32_t t = 0; t < 100; ++t) same.insert(same.end(), one.begin(), one.end());
  CHECK(trained_error(train(same, 2, 4, 8, true), same) < 1e-10);

  const Codes zeros = train(Floats(16 * 100, 0.0F), 2, 4, 8, true);
  CHECK(std::all_of(zeros.z.begin(), zeros.z.end(), [](float x) { return x == 0.0F; }));

  // Fewer different tokens than codes: most codes have none.
  Floats few = normal(3 * 16, 23);
  for (int32_t i = 0; i < 5; ++i) few.insert(few.end(), few.begin(), few.end());
  const Codes sparse = train(few, 2, 16, 8, true);
  CHECK(std::all_of(sparse.z.begin(), sparse.z.end(), [](float x) { return std::isfinite(x); }));
  CHECK(trained_error(sparse, few) < 0.01);
}

TEST_CASE("what cannot be trained is refused with the reason") {
  const Floats keys = normal(2 * 100 * 8, 24);
  const auto training = [&](int32_t codes, int32_t n, const kvq::KeyTrainingOptions& options) {
    return refusal([&] {
      kvq::Parallel parallel(1, nullptr, nullptr);
      kvq::cpu::HostTraining backend(parallel);
      kvq::KeyTrainingData data = data_of(keys, 8);
      data.n = n;
      kvq::KeyTrainer(memory(), backend, codes, data, options);
    });
  };
  CHECK(training(64, 63, {}) == "63 tokens are too few to train 64 key codes");
  CHECK(training(64, 65, {}).find("held out") != std::string::npos);
  CHECK(training(48, 100, {}).find("power of two") != std::string::npos);
  CHECK(training(512, 100, {}).find("from 2 to 256") != std::string::npos);
  kvq::KeyTrainingOptions options;
  options.beam = 17;
  CHECK(training(4, 100, options) == "beam is 17, must be in [1, 16]");
  options = {};
  options.held_out = 0.9F;
  CHECK(training(4, 100, options).find("held_out is 0.9") != std::string::npos);
  options = {};
  options.ridge = -1.0;
  CHECK(training(4, 100, options).find("out of range") != std::string::npos);
}

}  // namespace key_trainer_test
