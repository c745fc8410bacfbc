// Routers learn from keys: here kinds of pages that differ in the means of their keys.
#include "training/router/group_training.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "core/error.h"
#include "core/float16.h"
#include "support/allocator.h"
#include "support/random.h"

namespace router_training_test {
namespace {

using namespace kvq;
using kvq_test::test_allocator;

constexpr size_t kHeads = 2;
constexpr size_t kHeadDim = 8;
constexpr size_t kPages = 90;  // per group
constexpr size_t kGroups = 2;
constexpr double kWanted = 16.0 / 6.0 + 5.0 / 3.0 + 3.0 / 2.0;  // kinds 0, 1 and 2

/// A sixth of the pages need 16 bits, a third 5, and the others 3, in a different order for each group.
size_t kind_of(size_t group, size_t page) {
  constexpr size_t kKinds[] = {0, 1, 1, 2, 2, 2};
  return kKinds[(page + 2 * group) % 6];
}

/// Samples whose keys reveal the kind of a page more or less clearly.
struct Samples {
  explicit Samples(double distance, size_t units = 1) : samples(test_allocator()), keys(kGroups) {
    kvq_test::Random random(3);
    for (size_t g = 0; g < kGroups; ++g) {
      RouterPages& pages = samples.pages.emplace_back(test_allocator());
      pages.kv_heads = kHeads;
      pages.head_dim = kHeadDim;
      pages.units = units;
      GroupErrors& errors = samples.errors.emplace_back(test_allocator());
      errors.layers = g == 0 ? 3.0 : 2.0;
      const size_t numbers = pages.tokens_of_page() * kHeadDim;
      for (size_t page = 0; page < kPages; ++page) {
        const size_t kind = kind_of(g, page);
        for (size_t i = 0; i < numbers; ++i) {
          const double mean = i % kHeadDim == kind ? distance : 0.0;
          keys[g].push_back(to_float16(static_cast<float>(4.0 * (mean + random.normal()))));
        }
        for (size_t unit = 0; unit < units; ++unit) {
          for (size_t expert = 0; expert < 3; ++expert) errors.errors.push_back(expert <= kind ? 1e-3F : 1.0F);
        }
      }
      for (size_t page = 0; page < kPages; ++page) pages.keys.push_back(keys[g].data() + page * numbers);
    }
  }

  RouterSamples samples;
  std::vector<std::vector<uint16_t>> keys;
};

ModelRouter new_router(RouterMethod method) {
  ModelRouter router(test_allocator());
  router.shape = {5, kHeads, kHeadDim, KVQ_ROPE_HALF, 3, 3};
  for (const char* name : {"fp16", "int4", "int2"}) router.experts.push_back(*parse_format_pair(name));
  router.expert_bits.assign({16.0, 5.0, 3.0});
  router.method = method;
  return router;
}

ModelRouter train(const Samples& samples, RouterMethod method, double wanted, double lambda, int32_t epochs,
                  int32_t n_threads = 2, const TrainingProgress& progress = {nullptr, nullptr}) {
  Parallel parallel(n_threads, nullptr, nullptr);
  ModelRouter router = new_router(method);
  router.lambda = lambda;
  const RouterTrainingOptions options{epochs, 3e-3};
  if (method == RouterMethod::kLabel) {
    train_on_labels(test_allocator(), parallel, samples.samples, wanted, options, progress, router);
  } else {
    train_on_paper_loss(test_allocator(), parallel, samples.samples, 2.0, options, progress, router);
  }
  return router;
}

ModelRouter train_labels(const Samples& samples, int32_t n_threads = 2) {
  return train(samples, RouterMethod::kLabel, kWanted, 0.0, 40, n_threads);
}

}  // namespace

TEST_CASE("a router learns the labels where keys tell the kind of a page") {
  const Samples samples(2.0);
  const ModelRouter router = train_labels(samples);
  CHECK(router.accuracy > 0.98);
  CHECK(router.tolerance == doctest::Approx(1e-3));
  REQUIRE(router.groups.size() == kGroups);
  for (size_t g = 0; g < kGroups; ++g) {
    // Shares and accuracy as a caller computes them with the network alone.
    std::vector<double> shares(3, 0.0);
    double right = 0.0;
    for (size_t page = 0; page < kPages; ++page) {
      std::vector<float> keys;
      const size_t numbers = kHeads * 32 * kHeadDim;
      for (size_t i = 0; i < numbers; ++i) keys.push_back(from_float16(samples.keys[g][page * numbers + i]));
      std::vector<int32_t> votes(3, 0);
      add_votes(router.groups[g].network, keys, votes);
      const auto expert = static_cast<size_t>(elected(votes));
      shares[expert] += 1.0 / kPages;
      right += expert == kind_of(g, page) ? 1.0 / kPages : 0.0;
    }
    for (size_t i = 0; i < 3; ++i) CHECK(router.groups[g].shares[i] == doctest::Approx(shares[i]));
    CHECK(router.groups[g].accuracy == doctest::Approx(right));
    for (const float weight : router.groups[g].network.w1) CHECK(weight == from_float16(to_float16(weight)));
  }
}

TEST_CASE("the wanted bits are met where keys tell little, and one label for all is learned as well") {
  const Samples samples(0.3);
  const ModelRouter router = train_labels(samples);
  CHECK(std::fabs(router.mean_bits - kWanted) < 0.1);
  CHECK(router.accuracy > 0.5);
  const ModelRouter cheapest = train(samples, RouterMethod::kLabel, 3.0, 0.0, 10);
  CHECK(cheapest.mean_bits == 3.0);
  CHECK(cheapest.accuracy == 1.0);
  const ModelRouter dearest = train(samples, RouterMethod::kLabel, 16.0, 0.0, 10);
  CHECK(dearest.mean_bits == 16.0);
}

TEST_CASE("mean bits weigh groups by their layers") {
  const Samples samples(2.0);
  const ModelRouter router = train_labels(samples);
  double bits = 0.0;
  for (size_t g = 0; g < kGroups; ++g) {
    for (size_t i = 0; i < 3; ++i) {
      bits += router.groups[g].shares[i] * router.expert_bits[i] * (g == 0 ? 3.0 : 2.0) / 5.0;
    }
  }
  CHECK(router.mean_bits == doctest::Approx(bits));
  CHECK(std::fabs(router.mean_bits - kWanted) < 0.02);
}

TEST_CASE("where each head votes, each has its own choice") {
  const Samples samples(2.0, kHeads);
  const ModelRouter router = train_labels(samples);
  CHECK(router.accuracy > 0.98);
}

TEST_CASE("the paper's loss takes fewer bits the more memory weighs") {
  const Samples samples(1.0);
  double last = 0.0;
  for (const double lambda : {0.0, 0.5, 1.0}) {
    const ModelRouter router = train(samples, RouterMethod::kPaper, 0.0, lambda, 60);
    CAPTURE(lambda);
    CAPTURE(router.mean_bits);
    if (lambda == 0.0) CHECK(router.mean_bits == 3.0);
    CHECK(router.mean_bits >= last);
    CHECK(router.accuracy == 0.0);
    CHECK(router.tolerance == 0.0);
    last = router.mean_bits;
  }
  CHECK(last > 3.5);
}

TEST_CASE("routers are the same for any number of threads") {
  const Samples samples(0.5);
  const ModelRouter one = train_labels(samples, 1);
  for (const int32_t n_threads : {2, 5}) {
    const ModelRouter other = train_labels(samples, n_threads);
    CHECK(other.mean_bits == one.mean_bits);
    for (size_t g = 0; g < kGroups; ++g) {
      CHECK(other.groups[g].network.w1 == one.groups[g].network.w1);
      CHECK(other.groups[g].network.w2 == one.groups[g].network.w2);
      CHECK(other.groups[g].network.w3 == one.groups[g].network.w3);
    }
  }
}

TEST_CASE("training that is cancelled says so") {
  const Samples samples(0.5);
  int calls = 0;
  const auto hook = [](void* user, double) -> int32_t { return ++*static_cast<int*>(user) == 3 ? 1 : 0; };
  try {
    static_cast<void>(train(samples, RouterMethod::kLabel, kWanted, 0.0, 10, 1, TrainingProgress(hook, &calls)));
    CHECK(false);
  } catch (const Error& error) {
    CHECK(error.status() == KVQ_E_CANCELLED);
  }
  CHECK(calls == 3);
}

}  // namespace router_training_test
