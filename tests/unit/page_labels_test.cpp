#include "training/router/page_labels.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "support/allocator.h"
#include "support/random.h"

namespace page_labels_test {
namespace {

using namespace kvq;

const std::vector<double> kBits = {16.0, 5.0, 2.5};

/// Pages whose errors grow from expert to expert by random factors.
std::vector<GroupErrors> random_errors(size_t pages) {
  kvq_test::Random random(5);
  std::vector<GroupErrors> groups;
  for (const double layers : {3.0, 3.0, 1.0}) {
    GroupErrors& group = groups.emplace_back(kvq_test::test_allocator());
    group.layers = layers;
    for (size_t i = 0; i < pages; ++i) {
      const double error = 1e-4 * std::exp(2.0 * random.normal());
      group.errors.insert(group.errors.end(), {0.0F, static_cast<float>(error),
                                               static_cast<float>(error * (4.0 + 20.0 * random.uniform()))});
    }
  }
  return groups;
}

}  // namespace

TEST_CASE("a page is labelled with the cheapest expert that is good enough, with the first if none is") {
  const std::vector<float> errors = {0.0F, 0.1F, 0.5F};
  CHECK(label_page(errors, 1.0F) == 2);
  CHECK(label_page(errors, 0.5F) == 2);
  CHECK(label_page(errors, 0.49F) == 1);
  CHECK(label_page(errors, 0.05F) == 0);
  CHECK(label_page(errors, 0.0F) == 0);
  CHECK(label_page(std::vector<float>{0.3F, 0.4F, 0.5F}, 0.1F) == 0);
  CHECK(label_page(std::vector<float>{0.0F, 0.9F, 0.1F}, 0.2F) == 2);  // any number in between
}

TEST_CASE("one tolerance for all groups gives the mean bits that are wanted") {
  const std::vector<GroupErrors> groups = random_errors(2000);
  for (const double wanted : {2.6, 3.0, 4.25, 6.0, 12.0, 15.9}) {
    CAPTURE(wanted);
    const float tolerance = find_tolerance(groups, kBits, wanted);
    double bits = 0.0;
    for (const GroupErrors& group : groups) {
      for (size_t i = 0; i < group.errors.size(); i += 3) {
        const size_t label = group.errors[i + 2] <= tolerance ? 2 : group.errors[i + 1] <= tolerance ? 1 : 0;
        bits += kBits[label] * group.layers / (2000 * 7.0);
      }
    }
    CHECK(std::fabs(bits - wanted) < 0.005);
    CHECK(label_bits(groups, kBits, tolerance) == doctest::Approx(bits));
  }
}

TEST_CASE("the ends of the range are labels of one kind") {
  const std::vector<GroupErrors> groups = random_errors(50);
  CHECK(label_bits(groups, kBits, find_tolerance(groups, kBits, 16.0)) == 16.0);
  CHECK(label_bits(groups, kBits, find_tolerance(groups, kBits, 2.5)) == 2.5);
}

TEST_CASE("of two tolerances around the wanted bits the closer one is taken") {
  std::vector<GroupErrors> groups;
  groups.emplace_back(kvq_test::test_allocator());
  groups[0].errors.assign({0.0F, 0.1F, 0.2F});
  CHECK(label_bits(groups, kBits, find_tolerance(groups, kBits, 4.5)) == 5.0);
  CHECK(label_bits(groups, kBits, find_tolerance(groups, kBits, 3.0)) == 2.5);
  CHECK(label_bits(groups, kBits, find_tolerance(groups, kBits, 13.0)) == 16.0);
}

}  // namespace page_labels_test
