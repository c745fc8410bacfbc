#include "io/yaml_document.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <ctime>
#include <string>

#include "core/error.h"

namespace yaml_document_test {
namespace {

using kvq::io::parse_yaml;

std::string map_of(int keys) {
  std::string text;
  for (int i = 0; i < keys; ++i) text += "k" + std::to_string(i) + ": 1\n";
  return text;
}

/// Minimum CPU time of three runs on this thread.
double seconds_of(const std::string& text) {
  double least = 1e9;
  for (int run = 0; run < 3; ++run) {
    const std::clock_t begin = std::clock();
    parse_yaml(text);
    least = std::min(least, static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
  }
  return least;
}

std::string complaint(const std::string& text) {
  try {
    parse_yaml(text);
    return "";
  } catch (const kvq::Error& error) {
    CHECK_EQ(error.status(), KVQ_E_FORMAT);
    return error.what();
  }
}

}  // namespace

TEST_CASE("a key that occurs twice is found wherever it is, and only within its own map") {
  CHECK_EQ(complaint(map_of(500) + "k0: 2\n"), "yaml line 501: key \"k0\" occurs twice");
  CHECK_EQ(complaint(map_of(500) + "k499: 2\n"), "yaml line 501: key \"k499\" occurs twice");
  CHECK_EQ(complaint("a:\n  b: {c: 1, d: 2, \"c\": 3}\n"), "yaml line 2: key \"c\" occurs twice");
  CHECK_EQ(complaint("a: {a: {a: 1}}\nb: [{a: 1}, {a: 1}]\n"), "");
}

TEST_CASE("eight times as many keys take no more than about eight times as long") {
  // Comparing all pairs would give about 64.
  CHECK_LT(seconds_of(map_of(80000)), 24 * seconds_of(map_of(10000)));
}

TEST_CASE("what is not YAML is refused with its line") {
  CHECK_EQ(complaint(""), "yaml is empty");
  CHECK_EQ(complaint("# nothing\n"), "yaml is empty");
  CHECK_EQ(complaint("a: 1\n---\nb: 2\n"), "yaml holds more than one document");
  CHECK_EQ(complaint("a: &x 1\nb: *x\n"), "yaml line 2: aliases are not supported");
  for (const std::string broken :
       {"a: 1\nb: \"", "a: 1\nb: \"\\q\"\n", "a: 1\nb: \xC3(\n", "a: 1\nb: \x01\n", "a: 1\n\tb: 2\n"}) {
    CAPTURE(broken);
    CHECK_EQ(complaint(broken).substr(0, 13), "yaml line 2: ");
  }
}

TEST_CASE("nesting without end is refused soon") {
  for (const std::string unit : {"[", "- ", "a: [", "[a, "}) {
    std::string text;
    while (text.size() < (size_t{1} << 20U) - unit.size()) text += unit;
    CAPTURE(unit);
    const std::clock_t begin = std::clock();
    CHECK_NE(complaint(text), "");
    CHECK_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, 1.0);
  }
}

TEST_CASE("a document may have a few directives, and more are refused wherever the lines end") {
  CHECK_EQ(complaint("%YAML 1.1\n---\na: 1\n"), "");
  CHECK_EQ(complaint("%YAML 1.1\n%TAG !a! tag:a\n%TAG !b! tag:b\n--- # a comment of 50%\na: 100%\nb: 2\n"), "");
  for (const std::string line : {"\n", "\r", "\r\n", "\xC2\x85", "\xE2\x80\xA8", "\xE2\x80\xA9"}) {
    for (const std::string& before : {std::string(), "a: 1" + line + "..." + line, "\xEF\xBB\xBF" + line}) {
      CAPTURE(line);
      std::string text = before;
      for (int i = 0; text.size() < (size_t{1} << 20U) - 40; ++i) text += "%TAG !" + std::to_string(i) + "! x" + line;
      const std::string found = complaint(text + "---" + line + "a: 1");
      CHECK_NE(found.find(": more than 8 lines begin with %"), std::string::npos);
    }
  }
}

TEST_CASE("values that are nothing, and text that begins with a mark of its byte order") {
  const kvq::io::YamlNode root = parse_yaml(
      "\xEF\xBB\xBF"
      "a: ~\nb: null\nc:\nd: \"\"\ne: 'null'\n");
  using Kind = kvq::io::YamlNode::Kind;
  REQUIRE_EQ(root.members.size(), 5);
  for (size_t i = 0; i < 5; ++i) CHECK_EQ(root.members[i].second.kind, i < 3 ? Kind::kNull : Kind::kScalar);
}

}  // namespace yaml_document_test
