#include "llama/tokenizer.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "llama/error.h"
#include "support/places.h"
#include "support/scratch_directory.h"

namespace tokenizer_test {
namespace {

using doctest::Contains;
using nlohmann::json;
using namespace std::string_literals;

const std::filesystem::path kFixtures = std::filesystem::path(source_tree()) / "tests" / "data" / "tokenizers";
const std::filesystem::path kDemo = demo_model();
const std::filesystem::path kEvaluationText =
    std::filesystem::path(source_tree()).parent_path() / "shared" / "data" / "wikitext2-test.txt";

llama::Tokenizer load(const json& document) {
  const ScratchDirectory scratch;
  return llama::Tokenizer(scratch.write("tokenizer.json", document.dump()));
}

/// A tokenizer of characters a to d without pre-tokenization, with the given merges.
json letters_only(const std::vector<std::pair<std::string, std::string>>& merges) {
  json vocab = {{"?", 0}, {"a", 1}, {"b", 2}, {"c", 3}, {"d", 4}};
  json list = json::array();
  for (const auto& [left, right] : merges) {
    if (!vocab.contains(left + right)) vocab[left + right] = vocab.size();
    list.push_back({left, right});
  }
  return {{"model", {{"type", "BPE"}, {"unk_token", "?"}, {"vocab", vocab}, {"merges", list}}},
          {"decoder", {{"type", "Fuse"}}}};
}

/// Byte-pair encoding by definition: finds the best pair again before every merge.
std::vector<std::string> merge_by_definition(const std::string& text,
                                             const std::vector<std::pair<std::string, std::string>>& merges) {
  std::vector<std::string> symbols;
  for (char c : text) symbols.emplace_back(1, c);
  std::map<std::pair<std::string, std::string>, size_t> ranks;
  for (size_t rank = 0; rank < merges.size(); ++rank) ranks[merges[rank]] = rank;
  while (true) {
    size_t best = merges.size();
    size_t where = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto found = ranks.find({symbols[i], symbols[i + 1]});
      if (found != ranks.end() && found->second < best) {
        best = found->second;
        where = i;
      }
    }
    if (best == merges.size()) return symbols;
    symbols[where] += symbols[where + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(where) + 1);
  }
}

}  // namespace

TEST_CASE("ids and decoded texts equal those of the tokenizers package") {
  for (const std::string name : {"llama3", "qwen2", "gpt2", "metaspace", "demo"}) {
    CAPTURE(name);
    const llama::Tokenizer tokenizer(name == "demo" ? kDemo / "tokenizer.json" : kFixtures / (name + ".json"));
    const json expected = json::parse(read_file(kFixtures / (name + ".expected.json")));
    REQUIRE(expected.size() > 50);
    for (const json& item : expected) {
      const auto text = item["text"].get<std::string>();
      CAPTURE(text);
      const std::vector<int32_t> ids = tokenizer.encode(text);
      CHECK(ids == item["ids"].get<std::vector<int32_t>>());
      CHECK(tokenizer.decode(ids) == item["decoded"].get<std::string>());
    }
  }
}

TEST_CASE("the evaluation text gives the reference's ids") {
  if (!std::filesystem::exists(kEvaluationText)) {
    MESSAGE("skipped: there is no ", kEvaluationText.string());
    return;
  }
  const std::string text = read_file(kEvaluationText);
  const json reference = json::parse(read_file(kDemo / "reference.json"));
  const llama::Tokenizer tokenizer(kDemo / "tokenizer.json");
  const std::vector<int32_t> ids = tokenizer.encode(text);
  CHECK(ids.size() == reference["file_tokens"].get<size_t>());
  CHECK(std::vector<int32_t>(ids.begin(), ids.begin() + 32) == reference["first_32_ids"].get<std::vector<int32_t>>());
  CHECK(tokenizer.decode(ids) == text);
}

TEST_CASE("merging takes the lowest rank first and the leftmost of equals") {
  std::mt19937 random(20240607);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::string> known = {"a", "b", "c", "d"};
    std::vector<std::pair<std::string, std::string>> merges;
    for (int i = 0; i < 12; ++i) {
      const std::pair<std::string, std::string> merge{known[random() % known.size()], known[random() % known.size()]};
      if (std::find(merges.begin(), merges.end(), merge) != merges.end()) continue;
      merges.push_back(merge);
      known.push_back(merge.first + merge.second);
    }
    const llama::Tokenizer tokenizer = load(letters_only(merges));
    for (int i = 0; i < 20; ++i) {
      std::string text;
      for (size_t length = random() % 60; length > 0; --length) text += static_cast<char>('a' + random() % 4);
      std::vector<int32_t> expected;
      for (const std::string& symbol : merge_by_definition(text, merges)) {
        expected.push_back(tokenizer.token_id(symbol).value());
      }
      CHECK(tokenizer.encode(text) == expected);
    }
  }
}

TEST_CASE("one word of a megabyte is merged to the end") {
  const llama::Tokenizer tokenizer = load(letters_only({{"a", "a"}, {"aa", "aa"}}));
  const std::vector<int32_t> ids = tokenizer.encode(std::string((1 << 20) + 3, 'a'));
  REQUIRE(ids.size() == (1 << 18) + 2);
  CHECK(tokenizer.decode_piece(ids.front()) == "aaaa");
  CHECK(tokenizer.decode_piece(ids[ids.size() - 2]) == "aa");
  CHECK(tokenizer.decode_piece(ids.back()) == "a");
}

TEST_CASE("bytes that are not UTF-8 come back from decode unchanged") {
  std::mt19937 random(7);
  const std::vector<std::string> parts = {"\xff",         "\xc3",     "\x80\x80", "\xed\xa0\x80", "\xf5\x80\x80\x80",
                                          "\xf0\x9f\x98", "\xc0\xaf", "e\u0301",  "word",         " ",
                                          "\n\n",         "12",       "\0"s,      "\u4e16"};
  for (const std::string name : {"llama3", "gpt2", "metaspace", "demo"}) {
    CAPTURE(name);
    const llama::Tokenizer tokenizer(name == "demo" ? kDemo / "tokenizer.json" : kFixtures / (name + ".json"));
    for (int round = 0; round < 500; ++round) {
      std::string text = "x";  // so that no layout adds or removes a space before a space
      for (size_t count = random() % 12; count > 0; --count) text += parts[random() % parts.size()];
      const std::string decoded = tokenizer.decode(tokenizer.encode(text));
      CHECK(decoded == (name == "gpt2" ? " " + text : text));
    }
  }
  SUBCASE("also where valid text is normalized") {
    const llama::Tokenizer tokenizer(kFixtures / "qwen2.json");
    CHECK(tokenizer.decode(tokenizer.encode("\xff"
                                            "e\u0301\xc3")) ==
          "\xff"
          "\u00e9\xc3");
  }
}

TEST_CASE("special tokens are plain text to encode, findable by name, and nothing to decode") {
  const llama::Tokenizer tokenizer(kFixtures / "llama3.json");
  const int32_t eot = tokenizer.token_id("<|eot|>").value();
  const int32_t call = tokenizer.token_id("<call>").value();
  CHECK(tokenizer.vocab_size() == std::max(eot, call) + 1);
  CHECK_FALSE(tokenizer.token_id("<|none|>").has_value());
  for (int32_t id : tokenizer.encode("<|eot|><call>")) CHECK((id != eot && id != call));
  CHECK(tokenizer.decode(tokenizer.encode("<|eot|><call>")) == "<|eot|><call>");

  std::vector<int32_t> ids = tokenizer.encode("one");
  ids.push_back(eot);
  ids.push_back(call);
  CHECK(tokenizer.decode(ids) == "one<call>");
  CHECK(tokenizer.decode_piece(eot).empty());

  const llama::Tokenizer demo(kDemo / "tokenizer.json");
  CHECK(demo.token_id("<s>") == 1);
  CHECK(demo.decode_piece(1).empty());
  CHECK(demo.vocab_size() == 8192);
  for (int32_t id : demo.encode("<s></s>")) CHECK(id > 2);
}

TEST_CASE("the pieces of a stream add up to the text, with the space that the model saw in front") {
  const std::string text = "A caf\u00e9 \u4f60\U0001f600\n  end";
  for (const std::string name : {"llama3", "metaspace", "demo"}) {
    const llama::Tokenizer tokenizer(name == "demo" ? kDemo / "tokenizer.json" : kFixtures / (name + ".json"));
    std::string streamed;
    for (int32_t id : tokenizer.encode(text)) streamed += tokenizer.decode_piece(id);
    CHECK(streamed == (name == "llama3" ? text : " " + text));
  }
}

TEST_CASE("an id outside the vocabulary is refused") {
  const llama::Tokenizer tokenizer(kDemo / "tokenizer.json");
  CHECK_THROWS_WITH_AS(tokenizer.decode_piece(-1), Contains("token id -1 is not in the vocabulary"), llama::Error);
  CHECK_THROWS_WITH_AS(tokenizer.decode_piece(8192), Contains("token id 8192"), llama::Error);
  CHECK_THROWS_WITH_AS(tokenizer.decode(std::vector<int32_t>{5, INT32_MAX}), Contains("2147483647"), llama::Error);
  json gap = letters_only({});
  gap["model"]["vocab"]["d"] = 6;
  CHECK_THROWS_WITH_AS(load(gap).decode_piece(4), Contains("token id 4 is not in the vocabulary"), llama::Error);
  CHECK(load(gap).vocab_size() == 7);
}

TEST_CASE("Metaspace follows its prepend_scheme, and add_prefix_space in older files") {
  json document = letters_only({{"\u2581", "a"}});
  for (const auto& [token, id] : {std::pair("\u2581", 10), std::pair("\u2581a", 11)}) {
    document["model"]["vocab"][token] = id;
  }
  const auto ids_with = [&](json pre_tokenizer) {
    pre_tokenizer["type"] = "Metaspace";
    pre_tokenizer["replacement"] = "\u2581";
    document["pre_tokenizer"] = pre_tokenizer;
    return load(document).encode("a a");
  };
  const std::vector<int32_t> prefixed = {11, 11};
  const std::vector<int32_t> unprefixed = {1, 11};
  CHECK(ids_with(json::object()) == prefixed);
  CHECK(ids_with({{"prepend_scheme", "first"}}) == prefixed);
  CHECK(ids_with({{"prepend_scheme", "always"}, {"split", false}}) == prefixed);
  CHECK(ids_with({{"prepend_scheme", "never"}}) == unprefixed);
  CHECK(ids_with({{"add_prefix_space", true}}) == prefixed);
  CHECK(ids_with({{"add_prefix_space", false}}) == unprefixed);
  CHECK_THROWS_WITH_AS(ids_with({{"prepend_scheme", "last"}}), Contains("prepend_scheme is \"last\""), llama::Error);
}

TEST_CASE("unknown characters become the unknown token, one for a run of them if fused") {
  json document = letters_only({});
  CHECK(load(document).encode("axya\u4e16") == std::vector<int32_t>{1, 0, 0, 1, 0});
  document["model"]["fuse_unk"] = true;
  CHECK(load(document).encode("axya\u4e16") == std::vector<int32_t>{1, 0, 1, 0});
}

TEST_CASE("merges may be spelled as one string, a pattern may cut or remove, digits may stand alone") {
  json document = letters_only({{"a", "b"}, {"c", "d"}});
  document["model"]["merges"] = {"a b", "c d"};
  const llama::Tokenizer tokenizer = load(document);
  CHECK(tokenizer.encode("abcd") == std::vector<int32_t>{*tokenizer.token_id("ab"), *tokenizer.token_id("cd")});

  const auto ids_with = [&](const json& pattern, const char* behavior, bool invert) {
    document["pre_tokenizer"] = {{"type", "Split"}, {"pattern", pattern}, {"behavior", behavior}, {"invert", invert}};
    return load(document).encode("abbcd");
  };
  CHECK(ids_with({{"Regex", "ab|c"}}, "Isolated", false) == std::vector<int32_t>{5, 2, 3, 4});
  CHECK(ids_with({{"Regex", "ab|c"}}, "Removed", false) == std::vector<int32_t>{2, 4});
  CHECK(ids_with({{"Regex", "ab|c"}}, "Removed", true) == std::vector<int32_t>{5, 3});
  CHECK(ids_with({{"String", "b"}}, "Isolated", false) == std::vector<int32_t>{1, 2, 2, 6});
  CHECK(ids_with({{"String", "ab|c"}}, "Isolated", false) == std::vector<int32_t>{5, 2, 6});

  document["model"]["vocab"]["12"] = 9;
  document["model"]["vocab"]["1"] = 7;
  document["model"]["vocab"]["2"] = 8;
  document["model"]["merges"] = {"1 2"};
  document["pre_tokenizer"] = {{"type", "Digits"}, {"individual_digits", false}};
  CHECK(load(document).encode("a12") == std::vector<int32_t>{1, 9});
  document["pre_tokenizer"]["individual_digits"] = true;
  CHECK(load(document).encode("a12") == std::vector<int32_t>{1, 7, 8});
}

TEST_CASE("a tokenizer that would not be followed exactly is refused by the part at fault") {
  const auto refuses = [](const char* pointer, const json& value, const char* reason) {
    json document = letters_only({{"a", "b"}});
    document[json::json_pointer(pointer)] = value;
    CAPTURE(document.dump());
    CHECK_THROWS_WITH_AS(load(document), Contains(reason), llama::Error);
    CHECK_THROWS_WITH_AS(load(document), Contains("tokenizer.json: "), llama::Error);
  };
  refuses("/model", nullptr, "model is missing");
  refuses("/model", "BPE", "model: expected an object");
  refuses("/model/type", "Unigram", "type is \"Unigram\", expected \"BPE\"");
  refuses("/model/dropout", 0.1, "dropout is 0.1");
  refuses("/model/continuing_subword_prefix", "##", "continuing_subword_prefix is \"##\"");
  refuses("/model/end_of_word_suffix", "</w>", "end_of_word_suffix is \"</w>\"");
  refuses("/model/unk_token", "<unk>", "unk_token is \"<unk>\", which is not in the vocabulary");
  refuses("/model/unk_token", nullptr, "neither unk_token nor byte_fallback");
  refuses("/model/byte_fallback", true, "vocab has no token for byte 0");
  refuses("/model/vocab", nullptr, "vocab is missing");
  refuses("/model/vocab", json::array(), "vocab: expected an object");
  refuses("/model/vocab/a", 2, "id 2 belongs to both");
  refuses("/model/vocab/a", -1, "the id of 'a' is -1");
  refuses("/model/vocab/a", 1.5, "the id of 'a' is 1.5");
  refuses("/model/vocab/a", 4294967297, "the id of 'a' is 4294967297");
  refuses("/model/vocab/a", 100000, "the id of token 'a' is 100000, out of proportion");
  refuses("/model/merges", nullptr, "merges is missing");
  refuses("/model/merges", "a b", "merges is \"a b\", expected a list");
  refuses("/model/merges/0", {"a", "x"}, "merges[0]: token 'x' is not in the vocabulary");
  refuses("/model/merges/0", {"b", "a"}, "merges[0]: token 'ba' is not in the vocabulary");
  refuses("/model/merges/0", {"a", "b", "c"}, "merges[0] is not a pair");
  refuses("/model/merges/0", "a b c", "merges[0] is not a pair");
  refuses("/model/merges/0", "ab", "merges[0] is not a pair");
  refuses("/added_tokens", 1, "added_tokens is 1, expected a list");
  refuses("/added_tokens", {{{"id", 1}, {"content", "<s>"}}}, "id 1 belongs to both 'a' and '<s>'");
  refuses("/added_tokens", {{{"id", 9}, {"content", "a"}}}, "token 'a' has both id 1 and id 9");
  refuses("/added_tokens", {{{"content", "<s>"}}}, "added_tokens[0]: id is missing");
  refuses("/normalizer", {{"type", "Lowercase"}}, "normalizer: type is \"Lowercase\"");
  refuses("/normalizer", {{"type", "Replace"}, {"pattern", {{"Regex", " +"}}}, {"content", ""}}, "String is missing");
  refuses("/normalizer", {{"type", "Replace"}, {"pattern", {{"String", ""}}}, {"content", "x"}}, "pattern is");
  refuses("/normalizer", {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}, {{"type", "NFX"}}}}},
          "normalizer[1]: type is \"NFX\"");
  refuses("/pre_tokenizer", {{"type", "BertPreTokenizer"}}, "pre_tokenizer: type is \"BertPreTokenizer\"");
  refuses("/pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", 1}}, "add_prefix_space is 1");
  refuses("/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "__"}}, "replacement is \"__\"");
  const auto split = [](const char* pattern, const char* behavior) {
    return json{{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", behavior}};
  };
  refuses("/pre_tokenizer", split("a", "MergedWithNext"), "behavior is \"MergedWithNext\"");
  refuses("/pre_tokenizer", split("(a", "Isolated"), "pattern '(a'");
  refuses("/pre_tokenizer", split("[a-z&&[^b]]", "Isolated"), "'[a-z&&[^b]]' has an intersection of classes");
  refuses("/pre_tokenizer",
          {{"type", "Sequence"}, {"pretokenizers", {{{"type", "ByteLevel"}}, split("a", "Isolated")}}},
          "pre_tokenizer[1]: Split after ByteLevel");
  refuses("/decoder", nullptr, "decoder is missing");
  refuses("/decoder", {{"type", "WordPiece"}}, "decoder: type is \"WordPiece\"");
  refuses("/decoder", {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}, "Strip before Fuse");
}

TEST_CASE("a byte-level vocabulary without some byte is refused") {
  json document = json::parse(read_file(kFixtures / "gpt2.json"));
  json& vocab = document["model"]["vocab"];
  REQUIRE(vocab.erase("\u0100") == 1);  // the symbol of byte 0
  CHECK_THROWS_WITH_AS(load(document), Contains("vocab has no token for byte 0"), llama::Error);
}

}  // namespace tokenizer_test
