// Errors of attention when one page has another format, against attention in double over whole texts.
#include "training/router/page_errors.h"

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/dispatch/isa.h"
#include "support/allocator.h"
#include "support/handles.h"
#include "support/random.h"

namespace page_errors_test {
namespace {

using namespace kvq;

constexpr int32_t kQHeads = 4;
constexpr int32_t kKvHeads = 2;
constexpr int32_t kHeadDim = 16;
constexpr int32_t kLayer = 1;
const std::vector<std::string> kNames = {"fp16", "int8/int4", "int2"};

kvq_cache_options options_of_model() {
  kvq_cache_options options = kvq_test::cache_options(kQHeads, kKvHeads, kHeadDim, 2);
  options.scale = 0.4F;
  return options;
}

struct Text {
  explicit Text(int32_t tokens)
      : n(tokens),
        q(kvq_test::normal_tensor(static_cast<size_t>(n) * kQHeads * kHeadDim, 1, 1.5)),
        k(kvq_test::normal_tensor(static_cast<size_t>(n) * kKvHeads * kHeadDim, 2, 1.5)),
        v(kvq_test::normal_tensor(static_cast<size_t>(n) * kKvHeads * kHeadDim, 3)) {}

  RouterText view() const { return {q.data(), k.data(), v.data(), KVQ_F32, n}; }

  int32_t n;
  std::vector<float> q;
  std::vector<float> k;
  std::vector<float> v;
};

std::vector<float> measure(const Text& text, Votes votes, int32_t n_threads) {
  Parallel parallel(n_threads, nullptr, nullptr);
  cpu::CpuBackend backend(kvq_test::test_allocator(), cpu::find_table(nullptr), parallel);
  kvq::Policy policy(kvq_test::test_allocator());
  policy.votes = votes;
  for (const std::string& name : kNames) policy.experts.push_back(*parse_format_pair(name));
  PageErrors errors(kvq_test::test_allocator(), parallel, backend, options_of_model(), policy, {});
  const Vector<float> found = errors.measure(kLayer, text.view());
  return {found.begin(), found.end()};
}

/// A text stored in one format, as attention reads it.
struct Stored {
  Stored(const Text& text, const std::string& name) {
    const kvq_test::Context context = kvq_test::make_context();
    const size_t slash = name.find('/');
    const std::string policy = slash == std::string::npos ? name
                                                          : "{version: 1, keys: " + name.substr(0, slash) +
                                                                ", values: " + name.substr(slash + 1) + "}";
    const kvq_test::Cache cache = kvq_test::make_cache(context, options_of_model(), policy);
    kvq_test::Sequence sequence(cache);
    kvq_test::append(sequence, kLayer, text.n, text.k.data(), text.v.data());
    for (int32_t head = 0; head < kKvHeads; ++head) {
      heads.push_back(kvq_test::decode(sequence, kLayer, head, 0, text.n, kHeadDim));
    }
  }

  std::vector<kvq_test::Decoded> heads;
};

/// Attention of one query over slots, with those of `page` taken from `other`.
std::vector<double> attend(const Text& text, int32_t position, int32_t q_head, const kvq_test::Decoded& stored,
                           const kvq_test::Decoded& other, int32_t page) {
  std::vector<double> q(kHeadDim);
  const float* from = text.q.data() + (position * kQHeads + q_head) * kHeadDim;
  for (int32_t j = 0; j < kHeadDim / 2; ++j) {
    const double angle = position * std::pow(10000.0, -2.0 * j / kHeadDim);
    const double x = static_cast<double>(from[j]);
    const double y = static_cast<double>(from[j + kHeadDim / 2]);
    q[static_cast<size_t>(j)] = x * std::cos(angle) - y * std::sin(angle);
    q[static_cast<size_t>(j + kHeadDim / 2)] = x * std::sin(angle) + y * std::cos(angle);
  }
  double mass = 0.0;
  std::vector<double> out(kHeadDim, 0.0);
  for (int32_t i = 0; i <= position; ++i) {
    const kvq_test::Decoded& source = i / kPageSlots == page ? other : stored;
    double score = 0.0;
    for (size_t d = 0; d < q.size(); ++d) {
      score += q[d] * static_cast<double>(source.k[static_cast<size_t>(i) * q.size() + d]);
    }
    const double weight = std::exp(0.4 * score);
    mass += weight;
    for (size_t d = 0; d < q.size(); ++d) {
      out[d] += weight * static_cast<double>(source.v[static_cast<size_t>(i) * q.size() + d]);
    }
  }
  for (double& each : out) each /= mass;
  return out;
}

/// The queries, of 64 spread over the text, in the quarter of its tokens after the page, plus two right after it.
std::vector<int32_t> judges(int32_t n, int32_t page) {
  std::vector<int32_t> positions;
  const int32_t end = (page + 1) * kPageSlots;
  for (int32_t i = 1; i <= 64; ++i) {
    const int32_t position = n * i / 64 - 1;
    if (position >= end && position - (end - 1) <= n / 4) positions.push_back(position);
  }
  for (const int32_t position : {end, end + 16}) {
    if (position < n) positions.push_back(position);
  }
  return positions;
}

}  // namespace

TEST_CASE("the error of a page is that of attention with this page alone stored by an expert") {
  for (const int32_t n : {85, 86, 126, 127, 150, 300}) {
    CAPTURE(n);
    const Text text(n);
    std::vector<Stored> stored;
    for (const std::string& name : kNames) stored.emplace_back(text, name);
    const int32_t pages = n < 127   ? 1
                          : n < 300 ? 2
                                    : 6;  // pages after the first that are followed by a quarter of the text
    CHECK(routed_pages(n) == pages);
    for (const Votes votes : {Votes::kLayer, Votes::kHead}) {
      const std::vector<float> found = measure(text, votes, 2);
      const int32_t units = votes == Votes::kHead ? kKvHeads : 1;
      REQUIRE(found.size() == static_cast<size_t>(pages * units) * kNames.size());
      for (size_t i = 0; i < found.size(); ++i) {
        const size_t expert = i % kNames.size();
        const int32_t unit = static_cast<int32_t>(i / kNames.size()) % units;
        const int32_t page = 1 + static_cast<int32_t>(i / kNames.size()) / units;
        double error = 0.0;
        double energy = 0.0;
        for (int32_t q_head = 0; q_head < kQHeads; ++q_head) {
          const auto head = static_cast<size_t>(q_head / (kQHeads / kKvHeads));
          if (units > 1 && head != static_cast<size_t>(unit)) continue;
          for (const int32_t position : judges(n, page)) {
            const auto& exact = stored.front().heads[head];
            const std::vector<double> o = attend(text, position, q_head, exact, exact, page);
            const std::vector<double> other = attend(text, position, q_head, exact, stored[expert].heads[head], page);
            for (size_t d = 0; d < o.size(); ++d) {
              error += (other[d] - o[d]) * (other[d] - o[d]);
              energy += o[d] * o[d];
            }
          }
        }
        CAPTURE(i);
        CHECK(static_cast<double>(found[i]) == doctest::Approx(error / energy).epsilon(1e-3));
        CHECK((expert == 0) == (found[i] == 0.0F));
      }
    }
  }
}

TEST_CASE("errors are the same for any number of threads, and texts without routed pages have none") {
  const Text text(200);
  const std::vector<float> one = measure(text, Votes::kLayer, 1);
  for (const int32_t n_threads : {2, 3, 7}) CHECK(measure(text, Votes::kLayer, n_threads) == one);
  for (const int32_t n : {1, 31, 32, 33, 64, 84}) CHECK(measure(Text(n), Votes::kLayer, 2).empty());
}

TEST_CASE("pages that hold all of the attention, or nothing, have errors that are numbers") {
  Text text(140);
  for (int32_t slot = 40; slot < 50; ++slot) {  // a page of huge scores: the weights of all others vanish
    for (int32_t d = 0; d < kKvHeads * kHeadDim; ++d)
      text.k[static_cast<size_t>(slot * kKvHeads * kHeadDim + d)] *= 5e3F;
  }
  for (float& each : text.q) each *= 100.0F;
  for (const float error : measure(text, Votes::kLayer, 1)) CHECK(std::isfinite(error));
  std::fill(text.v.begin(), text.v.end(), 0.0F);
  for (const float error : measure(text, Votes::kLayer, 1)) CHECK(error == 0.0F);
}

}  // namespace page_errors_test
