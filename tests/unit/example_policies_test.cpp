// The policies in docs/policies match their descriptions.
#include "io/policy_yaml.h"
#include "kvq.h"
#include "support/allocator.h"
#include "unit/places.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace example_policies_test {
namespace {

struct Example {
  std::string file;  // without its extension
  std::string method;
};
const std::vector<Example> kExamples{{"streaming", "streaming"}, {"h2o", "h2o"},
                                     {"snapkv", "snapkv"},       {"pyramidkv", "pyramid"},
                                     {"ada-snapkv", "adasnap"},  {"ada-pyramidkv", "adapyramid"}};

std::string read(const std::string& file) {
  std::ostringstream text;
  text << std::ifstream(example_policies() / (file + ".yaml"), std::ios::binary).rdbuf();
  return text.str();
}

}  // namespace

TEST_CASE("there is one example of a policy for each method, one with gain-shape formats and one with a router") {
  std::set<std::string> present;
  for (const auto& entry : std::filesystem::directory_iterator(example_policies()))
    present.insert(entry.path().filename().string());
  std::set<std::string> expected{"gain-shape.yaml", "moqae.yaml"};
  for (const Example& example : kExamples) expected.insert(example.file + ".yaml");
  CHECK(present == expected);
}

TEST_CASE("an example sets its method, and everything else to the default that it names") {
  for (const Example& example : kExamples) {
    CAPTURE(example.file);
    const std::string text = read(example.file);
    const kvq::Policy policy = kvq::io::read_policy(kvq_test::test_allocator(), text);
    const kvq::Policy by_name =
        kvq::io::read_policy(kvq_test::test_allocator(), "int4+hadamard+" + example.method + ":128");
    CHECK((policy.eviction == by_name.eviction));
    CHECK((policy.keys == by_name.keys));
    CHECK((policy.values == by_name.values));
    CHECK(policy.sink == 1);
    CHECK(policy.recent == by_name.recent);
  }
}

TEST_CASE("the example with gain-shape formats has the formats and the pages that it explains") {
  const kvq::Policy policy = kvq::io::read_policy(kvq_test::test_allocator(), read("gain-shape"));
  const auto shape = [](kvq::CodeType code, bool page_mean) {
    return kvq::SideFormat{.code = code,
                           .rotation = kvq::Rotation::kHadamard,
                           .centre = page_mean ? kvq::Centre::kPageMean : kvq::Centre::kNone};
  };
  CHECK((policy.keys == shape(kvq::CodeType::gain_trellis(2), true)));
  CHECK((policy.values == shape(kvq::CodeType::gain_scalar(2), true)));
  CHECK((policy.formats(0).keys == shape(kvq::CodeType::gain_scalar(4), false)));
  CHECK((policy.formats(1).keys == shape(kvq::CodeType::gain_scalar(4), false)));
  CHECK((policy.formats(1).values == shape(kvq::CodeType::gain_scalar(3), true)));
  CHECK((policy.formats(2).keys == policy.keys));
  const kvq::Policy by_name = kvq::io::read_policy(kvq_test::test_allocator(), "gt2/gs2");
  CHECK(policy.sink_pages() == by_name.sink_pages());
  CHECK(policy.recent == by_name.recent);
  CHECK(policy.eviction.budget == 0);
}

TEST_CASE("the example with a router has the formats, the votes and the pages that it explains") {
  const kvq::Policy policy = kvq::io::read_policy(kvq_test::test_allocator(), read("moqae"));
  const kvq::SideFormat int4{.code = kvq::CodeType::integer(4)};
  const kvq::SideFormat int2{.code = kvq::CodeType::integer(2)};
  REQUIRE(policy.experts.size() == 3);
  CHECK((policy.experts[0] == kvq::FormatPair{}));
  CHECK((policy.experts[1] == kvq::FormatPair{int4, int4}));
  CHECK((policy.experts[2] == kvq::FormatPair{int2, int2}));
  CHECK((policy.votes == kvq::Votes::kLayer));
  CHECK(policy.sink == 1);
  CHECK(policy.recent == 1);
  CHECK(policy.eviction.budget == 0);
}

TEST_CASE("a host can load every example and sees that it evicts") {
  kvq_context* context = nullptr;
  REQUIRE(kvq_context_create(nullptr, &context, nullptr) == KVQ_OK);
  for (const Example& example : kExamples) {
    CAPTURE(example.file);
    const std::string text = read(example.file);
    kvq_policy* policy = nullptr;
    REQUIRE(kvq_policy_load(context, text.data(), text.size(), &policy, nullptr) == KVQ_OK);
    kvq_policy_info info{};
    info.struct_size = sizeof(info);
    CHECK(kvq_policy_describe(policy, &info, nullptr) == KVQ_OK);
    CHECK(info.eviction_budget == 128);
    CHECK(info.eviction_window == 32);
    kvq_policy_destroy(policy);
  }
  kvq_context_destroy(context);
}

}  // namespace example_policies_test
