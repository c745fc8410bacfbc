// Files that come with downloaded weights, and texts of a megabyte, cannot take unbounded time or memory. Where only
// time tells, sizes are such that quadratic work takes minutes.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "llama/added_tokens.h"
#include "llama/error.h"
#include "llama/json_document.h"
#include "llama/system.h"
#include "llama/tokenizer.h"
#include "llama/unicode.h"
#include "support/scratch_directory.h"

namespace bounded_work_test {
namespace {

using doctest::Contains;
using nlohmann::json;

llama::Tokenizer load(const json& parts) {
  json document = {{"model",
                    {{"type", "BPE"},
                     {"unk_token", "?"},
                     {"vocab", {{"?", 0}, {"a", 1}, {"b", 2}, {"1", 3}}},
                     {"merges", json::array()}}},
                   {"decoder", {{"type", "Fuse"}}}};
  document.update(parts);
  const ScratchDirectory scratch;
  return llama::Tokenizer(scratch.write("tokenizer.json", document.dump()));
}

json replacement(const std::string& from, const std::string& to) {
  return {{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
}

json sequence(const char* key, const std::vector<json>& stages, int times) {
  json list = json::array();
  for (int i = 0; i < times; ++i) {
    for (const json& stage : stages) list.push_back(stage);
  }
  return {{"type", "Sequence"}, {key, list}};
}

json split_at(const std::string& pattern) {
  return {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}};
}

void check_refused(const json& parts, const std::string& text, const char* reason) {
  CHECK_THROWS_WITH_AS(static_cast<void>(load(parts).encode(text)), Contains(reason), llama::Error);
}

std::string repeated(const std::string& text, size_t times) {
  std::string all;
  for (size_t i = 0; i < times; ++i) all += text;
  return all;
}

}  // namespace

TEST_CASE("a tokenizer whose stages multiply a text is refused with the stage, the text and the limit") {
  // 16 times the text and 64 KiB
  check_refused({{"normalizer", sequence("normalizers", {replacement("a", "aa")}, 20)}}, "a",
                "normalizer: text of 1 bytes grows beyond the limit of 65552 bytes");
  check_refused({{"normalizer", replacement("a", std::string(1000, 'b'))}}, std::string(1000, 'a'),
                "normalizer: text of 1000 bytes grows beyond the limit of 81536 bytes");
  check_refused(
      {{"normalizer", sequence("normalizers", {{{"type", "Prepend"}, {"prepend", std::string(999, 'b')}}}, 66)}}, "a",
      "normalizer: text of 1 bytes grows beyond");
  check_refused({{"decoder", sequence("decoders", {replacement("a", "aa")}, 20)}}, "a",
                "decoder: text of 4 bytes grows beyond the limit of 65600 bytes");
  const auto marker = [](const char* character) {
    return json{{"type", "Metaspace"}, {"replacement", character}, {"prepend_scheme", "always"}};
  };
  check_refused(
      {{"pre_tokenizer",
        sequence("pretokenizers", {{{"type", "Digits"}, {"individual_digits", true}}, marker("1"), marker("2")}, 20)}},
      "a", "pre_tokenizer: text of 1 bytes grows beyond");
}

TEST_CASE("a text may grow as far as normal forms and markers of spaces ever let it") {
  const std::string longest = "\xef\xb7\xba";  // U+FDFA, 18 characters in compatibility decomposition, 3 of them spaces
  const llama::Tokenizer tokenizer =
      load({{"normalizer", sequence("normalizers", {{{"type", "NFKD"}}, replacement(" ", "\u2581")}, 1)}});
  CHECK(tokenizer.encode(repeated(longest, 10'000)).size() == 180'000);
}

TEST_CASE("stages without number are refused when their work exceeds what any text needs") {
  const std::string text(1000, 'a');
  check_refused({{"normalizer", sequence("normalizers", {replacement("a", "b"), replacement("b", "a")}, 3000)}}, text,
                "normalizer: text of 1000 bytes takes more than the limit of 4128000 steps");
  check_refused({{"normalizer", sequence("normalizers", {{{"type", "NFC"}}}, 300)}}, text,
                "normalizer: text of 1000 bytes takes more");
  check_refused({{"pre_tokenizer", sequence("pretokenizers", {{{"type", "Digits"}}}, 5000)}}, text,
                "text of 1000 bytes takes more");
}

TEST_CASE("a pattern that backtracks or looks ahead in quadratic time is refused with its place") {
  const std::string text = std::string(5000, 'a') + "c" + std::string(5000, 'a');
  // Work before every place, work between places, and work inside one item of the pattern.
  for (const char* pattern : {"(a+)+$", "a(?=.*d|.*c.*e)", "(?=(?:.*+x)?)a"}) {
    CAPTURE(pattern);
    check_refused({{"pre_tokenizer", split_at(pattern)}}, text,
                  "pre_tokenizer: pattern: text of 10001 bytes takes more than the limit of 5280128 steps");
  }
}

TEST_CASE("a long run of marks is put in canonical order") {
  const size_t n = 500'000;
  const std::string acute = "\u0301";      // class 230
  const std::string dot_below = "\u0323";  // class 220
  const std::string mixed = "x" + repeated(acute + dot_below, n);
  CHECK((llama::normalize(mixed, llama::NormalForm::kNfd) == "x" + repeated(dot_below, n) + repeated(acute, n)));
  CHECK((llama::normalize("a" + mixed.substr(1), llama::NormalForm::kNfc) ==
         "\u1ea1" + repeated(dot_below, n - 1) + repeated(acute, n)));
}

TEST_CASE("a text is found in linear time where std::string would compare at every place") {
  const std::string text(2'000'000, 'a');
  CHECK(llama::find_text(text, std::string(1'000'000, 'a') + "b") == std::string::npos);
  CHECK(llama::find_text(text, std::string(1'000'000, 'a'), 5) == 5);
  CHECK(llama::find_text(text, "a", text.size()) == std::string::npos);
  const llama::Tokenizer tokenizer = load({{"normalizer", replacement(std::string(1'000'000, 'a') + "b", "")}});
  CHECK(tokenizer.encode(text).size() == text.size());
}

TEST_CASE("the longest added token at a place is found as by trying all") {
  std::mt19937 random(20240611);
  const auto letters = [&random](size_t most) {
    std::string text;
    for (size_t length = random() % (most + 1); length > 0; --length) text += "ab\xff"[random() % 3];
    return text;
  };
  for (int round = 0; round < 300; ++round) {
    std::vector<llama::AddedTokens::Token> tokens;
    for (int32_t id = 0; id < 20; ++id) tokens.push_back({letters(5), id});
    const llama::AddedTokens added(tokens);
    for (int i = 0; i < 20; ++i) {
      const std::string text = letters(8);
      const llama::AddedTokens::Token* expected = nullptr;
      for (const auto& token : tokens) {
        const bool fits = !token.content.empty() && text.starts_with(token.content);
        if (fits && (expected == nullptr || token.content.size() >= expected->content.size())) expected = &token;
      }
      const llama::AddedTokens::Token* found = added.longest_at(text);
      REQUIRE((found == nullptr) == (expected == nullptr));
      if (found != nullptr) CHECK(found->id == expected->id);
    }
  }
}

TEST_CASE("a hundred thousand added tokens with one beginning are told apart in a text") {
  json tokens = json::array();
  for (int i = 0; i < 100'000; ++i) tokens.push_back({{"id", i + 4}, {"content", "<" + std::to_string(i) + ">"}});
  const llama::Tokenizer tokenizer = load({{"added_tokens", tokens}});
  const std::vector<int32_t> ids = tokenizer.encode_with_added(repeated("<99999><a<7>", 50'000));
  REQUIRE(ids.size() == 200'000);  // "<99999>", "<", which is unknown, "a", "<7>"
  CHECK(ids[0] == 100'003);
  CHECK(ids[1] == 0);
  CHECK(ids[2] == 1);
  CHECK(ids[3] == 11);
  CHECK_THROWS_WITH_AS(load({{"added_tokens", {{{"id", 4}, {"content", std::string(1025, 'x')}}}}}),
                       Contains("added_tokens[0]: content is \"xxx"), llama::Error);
}

TEST_CASE("a list of hundreds of thousands of objects is parsed") {
  const json document = llama::parse_json("[" + repeated(R"({"a":1},)", 400'000) + "{}]", "list.json");
  REQUIRE(document.size() == 400'001);
  CHECK(document[399'999] == json{{"a", 1}});
  CHECK(document.back() == json::object());
}

TEST_CASE("JSON is parsed as it is written, in as many as 64 levels") {
  const std::string text =
      R"({"a":[null,true,-1,18446744073709551615,1.5,"x\u00fc",{},[]],"b":{"a":{"c":[[1],{"d":2}]}}})";
  CHECK(llama::parse_json(text, "t.json") == json::parse(text));
  const auto nested = [](size_t n) { return std::string(n, '[') + std::string(n, ']'); };
  CHECK(llama::parse_json(nested(64), "t.json") == json::parse(nested(64)));
  const auto refused = [](const std::string& bad, const char* reason) {
    CHECK_THROWS_WITH_AS(llama::parse_json(bad, "t.json"), Contains(reason), llama::Error);
  };
  refused(nested(65), "t.json: JSON is nested deeper than 64");
  refused(R"({"a":{"b":1},"a":2})", "t.json: the name 'a' occurs twice in one object");
  refused("{\"a\":1", "t.json: not valid JSON: parse error at line 1, column 7");
  refused("[1e999]", "t.json: not valid JSON: number overflow");
  refused("", "t.json: not valid JSON: it is empty");
}

}  // namespace bounded_work_test
