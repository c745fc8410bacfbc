// A written policy reads back as the same policy.

#include "core/error.h"
#include "io/policy_yaml.h"
#include "support/allocator.h"
#include "unit/places.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace policy_yaml_write_test {
namespace {

using kvq::Policy;

constexpr int32_t kLayers = 12;  // that random policies mention, and some more

Policy read(const std::string& text) { return kvq::io::read_policy(kvq_test::test_allocator(), text); }

int32_t last_layer(const Policy& policy) {
  int32_t last = -1;
  for (const Policy::Override& each : policy.overrides) last = std::max(last, each.last_layer);
  return last;
}

/// Everything that a cache or a host reads from a policy.
void check_same(const Policy& a, const Policy& b) {
  for (int32_t layer = 0; layer < kLayers + 4; ++layer) {
    CAPTURE(layer);
    CHECK((a.formats(layer) == b.formats(layer)));
  }
  CHECK((a.formats(65535) == b.formats(65535)));
  CHECK(last_layer(a) == last_layer(b));
  CHECK(a.sink_pages() == b.sink_pages());
  CHECK(a.recent == b.recent);
  CHECK(a.calibrates() == b.calibrates());
  CHECK((a.eviction == b.eviction));
  for (const kvq::Codec* codec : kvq::all_codecs()) CHECK(a.options.of(*codec) == b.options.of(*codec));
  CHECK(std::equal(a.experts.begin(), a.experts.end(), b.experts.begin(), b.experts.end()));
  CHECK((a.votes == b.votes));
}

void check_round_trip(const std::string& text) {
  CAPTURE(text);
  const Policy policy = read(text);
  const std::string written = kvq::io::write_policy(policy);
  CAPTURE(written);
  const Policy again = read(written);
  check_same(policy, again);
  CHECK(kvq::io::write_policy(again) == written);
}

std::string write(const std::string& text) { return kvq::io::write_policy(read(text)); }

/// Random policies that use every syntax.
class Author {
 public:
  explicit Author(uint32_t seed) : random_(seed) {}

  std::string policy() {
    std::string text = "version: 1\n";
    if (one_of(5)) {
      text += router();
    } else {
      if (!one_of(6)) text += "keys: " + side(false) + "\n";
      if (!one_of(6)) text += "values: " + side(true) + "\n";
      text += layers();
    }
    if (one_of(3)) text += "sink: " + number(0, 4) + "\n";
    if (one_of(3)) text += "recent: " + number(1, 5) + "\n";
    if (one_of(3)) text += one_of(2) ? "calibrate: first\n" : "calibrate: none\n";
    if (one_of(4)) text += "centres: " + pick({"none", "page", "trained"}) + "\n";
    if (one_of(4)) {
      text += "commvq: {beam: " + number(1, 16) + ", flips: " + number(0, 200) +
              ", attention: " + pick({"auto", "tables", "rebuild"}) + "}\n";
    }
    if (one_of(2)) text += eviction();
    return text;
  }

 private:
  bool one_of(int n) { return random_() % static_cast<uint32_t>(n) == 0; }
  std::string pick(const std::vector<std::string>& choices) { return choices[random_() % choices.size()]; }
  std::string number(int32_t low, int32_t high) {
    return std::to_string(low + static_cast<int32_t>(random_() % static_cast<uint32_t>(high - low + 1)));
  }
  std::string fraction(float low, float high) {
    std::ostringstream text;
    text.precision(9);
    text << std::uniform_real_distribution<float>(low, high)(random_);
    return text.str();
  }

  std::string name() {
    return pick({"fp16", "int8", "int4", "int4+hadamard", "int2+hadamard", "int3", "commvq", "gs4", "gs3+nocentre",
                 "gs2+centres", "gs1", "gt3", "gt2+nocentre", "gt1+centres"});
  }
  std::string side(bool values) {
    if (one_of(2)) return name();
    switch (random_() % 3) {
      case 0:
        return "{format: " + pick({"int8", "int4", "int3", "int2"}) + ", hadamard: " + pick({"true", "false"}) +
               (values ? ", group: " + pick({"32", "64", "128"}) : "") + "}";
      case 1:
        return "{format: " + pick({"gs4", "gs2", "gt1"}) + ", centres: " + pick({"none", "page", "trained"}) + "}";
      default:
        return "{format: " + name() + (values ? ", group: 128" : "") + "}";
    }
  }
  std::string layers() {
    std::string text;
    for (int entries = static_cast<int>(random_() % 6); entries > 0; --entries) {
      const int32_t first = static_cast<int32_t>(random_() % kLayers);
      text += "  - {range: [" + std::to_string(first) + ", " + number(first, kLayers - 1) + "]";
      if (!one_of(3)) text += ", keys: " + side(false);
      if (!one_of(3)) text += ", values: " + side(true);
      text += "}\n";
    }
    return text.empty() ? "" : "layers:\n" + text;
  }
  std::string router() {
    std::vector<std::string> experts{"fp16", "int8/int4", "int4+hadamard", "gs2+nocentre/gs1", "int2"};
    std::shuffle(experts.begin(), experts.end(), random_);
    std::string text = "router: {experts: [" + experts[0];
    for (size_t i = 1; i < 2 + random_() % 4; ++i) text += ", " + experts[i];
    return text + "], votes: " + pick({"layer", "head"}) + "}\n";
  }
  std::string eviction() {
    const std::string share = number(1, 99) + "." + number(0, 9) + "%";
    std::string text = "eviction: {budget: " + (one_of(2) ? share : number(4096, 100000));
    const auto maybe = [&](const std::string& key, const std::string& value) {
      if (one_of(2)) text += ", " + key + ": " + value;
    };
    maybe("method", pick({"streaming", "h2o", "snapkv", "pyramid", "adasnap", "adapyramid"}));
    maybe("score", pick({"window", "streaming", "mass"}));
    maybe("layers", pick({"uniform", "pyramid"}));
    maybe("heads", pick({"uniform", "adaptive", "reserved", "together"}));
    maybe("window", number(1, 4096));
    maybe("kernel", std::to_string(1 + 2 * static_cast<int>(random_() % 128)));
    maybe("pooling", pick({"max", "mean"}));
    maybe("group", pick({"max", "mean"}));
    maybe("first", number(0, 40));
    maybe("alpha", fraction(0.0F, 1.0F));
    maybe("beta", pick({fraction(1.0F, 40.0F), "1000000", "1e6", fraction(1000.0F, 1e6F)}));
    return text + "}\n";
  }

  std::mt19937 random_;
};

}  // namespace

TEST_CASE("the examples of policies are written as the policies that they are") {
  int examples = 0;
  for (const auto& entry : std::filesystem::directory_iterator(example_policies())) {
    std::ostringstream text;
    text << std::ifstream(entry.path(), std::ios::binary).rdbuf();
    check_round_trip(text.str());
    ++examples;
  }
  CHECK(examples >= 8);
}

TEST_CASE("short forms are written as the policies that they are") {
  for (const char* const format : {"fp16", "int4+hadamard", "gs2", "gt2/gt1", "gs4+nocentre/int3", "commvq",
                                   "gs2+centres", "gs2+snapkv:64", "int8/int4+adapyramid:1000"}) {
    check_round_trip(format);
  }
}

TEST_CASE("policies made up at random are written as what they are") {
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    CAPTURE(seed);
    check_round_trip(Author(seed).policy());
  }
}

TEST_CASE("a policy is written without its defaults") {
  CHECK(write("fp16") == "version: 1\nkeys: fp16\nvalues: fp16\n");
  CHECK(write("version: 1\nkeys: gs2\nrecent: 1\nsink: 1\n") == "version: 1\nkeys: gs2\nvalues: fp16\nsink: 1\n");
  CHECK(write("int4+snapkv:64") == "version: 1\nkeys: int4\nvalues: int4\neviction: {method: snapkv, budget: 64}\n");
  CHECK(write("int4+snapkv:12.5%") ==
        "version: 1\nkeys: int4\nvalues: int4\neviction: {method: snapkv, budget: 12.5%}\n");
  CHECK(write("version: 1\neviction: {method: h2o, heads: together, budget: 64, alpha: 0.1, group: max}\n") ==
        "version: 1\nkeys: fp16\nvalues: fp16\n"
        "eviction: {budget: 64, score: mass, heads: together, group: max, alpha: 0.1}\n");
  CHECK(write("version: 1\nvalues: {format: int4, group: 64}\ncommvq: {beam: 3, attention: rebuild}\n") ==
        "version: 1\nkeys: fp16\nvalues: {format: int4, group: 64}\ncommvq: {beam: 3, attention: rebuild}\n");
  CHECK(write("version: 1\nrouter: {experts: [fp16, int8/int4], votes: head}\n") ==
        "version: 1\nrouter: {experts: [fp16, int8/int4], votes: head}\n");
}

TEST_CASE("successive layers with the same formats are one range, and those that are as the others none") {
  CHECK(write("version: 1\nkeys: int4\nlayers:\n"
              "  - {range: [0, 3], keys: int8}\n"
              "  - {range: [4, 5], keys: int8}\n"
              "  - {range: [2, 2], keys: int4}\n"
              "  - {range: [7, 8], keys: fp16, values: int8}\n"
              "  - {range: [8, 8], values: fp16}\n") ==
        "version: 1\nkeys: int4\nvalues: fp16\nlayers:\n"
        "  - {range: [0, 1], keys: int8}\n"
        "  - {range: [3, 5], keys: int8}\n"
        "  - {range: [7, 7], keys: fp16, values: int8}\n"
        "  - {range: [8, 8], keys: fp16}\n");
}

TEST_CASE("a last layer is named even if it is as the others, since caches with fewer are refused") {
  CHECK(write("version: 1\nkeys: int4\nlayers: [{range: [3, 9], keys: int4}]\n") ==
        "version: 1\nkeys: int4\nvalues: fp16\nlayers:\n  - {range: [9, 9]}\n");
}

TEST_CASE("the first pages stay FP16 if only a format that no layer has any more wanted it") {
  CHECK(write("version: 1\nlayers: [{range: [0, 1], keys: gs2}, {range: [0, 1], keys: int8}]\n") ==
        "version: 1\nkeys: fp16\nvalues: fp16\nsink: 1\ncalibrate: first\nlayers:\n  - {range: [0, 1], keys: int8}\n");
}

TEST_CASE("windows are written by ranges of layers") {
  CHECK(write("version: 1\nwindow: 64\nlayers: [{range: [0, 1], keys: int8}, {range: [1, 3], window: 0}]\n") ==
        "version: 1\nkeys: fp16\nvalues: fp16\nwindow: 64\nlayers:\n  - {range: [0, 0], keys: int8}\n"
        "  - {range: [1, 1], keys: int8, window: 0}\n  - {range: [2, 3], window: 0}\n");
  CHECK(write("version: 1\nwindow: 64\nlayers: [{range: [5, 5], window: 64}]\n") ==
        "version: 1\nkeys: fp16\nvalues: fp16\nwindow: 64\nlayers:\n  - {range: [5, 5]}\n");
}

TEST_CASE("a policy that would be too long to be read is not written") {
  Policy policy = read("int4");
  policy.overrides.reserve(32768);
  for (int32_t layer = 0; layer < 65536; layer += 2) {
    policy.overrides.push_back({layer, layer, kvq::parse_format("int2+hadamard"), {}, {}});
  }
  try {
    kvq::io::write_policy(policy);
    FAIL("it was written");
  } catch (const kvq::Error& error) {
    CHECK(error.status() == KVQ_E_UNSUPPORTED);
    CHECK(std::string(error.what()).find("32768 ranges") != std::string::npos);
  }
}

}  // namespace policy_yaml_write_test
