// External text in messages.
#include "core/text.h"

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "api/boundary.h"
#include "support/random.h"

namespace text_test {
namespace {

using kvq::is_utf8;
using kvq::Quoted;

/// `text` truncated to the available bytes, with a NUL.
std::string readable(const std::string& text, size_t bytes = 255) {
  std::vector<char> out(bytes + 1, 'X');
  kvq::write_readable(text, out);
  return out.data();
}

/// UTF-8 of a code point by definition.
std::string encoded(uint32_t code) {
  const auto byte = [](uint32_t value) { return static_cast<char>(value); };
  if (code < 0x80) return {byte(code)};
  if (code < 0x800) return {byte(0xC0 | code >> 6U), byte(0x80 | (code & 63U))};
  if (code < 0x10000) return {byte(0xE0 | code >> 12U), byte(0x80 | (code >> 6U & 63U)), byte(0x80 | (code & 63U))};
  return {byte(0xF0 | code >> 18U), byte(0x80 | (code >> 12U & 63U)), byte(0x80 | (code >> 6U & 63U)),
          byte(0x80 | (code & 63U))};
}

/// The message that a caller gets.
std::string message_of(const char* text) {
  kvq_error error;
  kvq_error_init(&error, sizeof(error));
  kvq::api::guarded(&error, [&] { kvq::fail(KVQ_E_FORMAT, "name '%s'", text); });
  return error.message;
}

}  // namespace

TEST_CASE("every code point but surrogates is UTF-8, and no part of one") {
  for (uint32_t code = 0; code < 0x110400; ++code) {
    const std::string text = encoded(code);
    const bool valid = code < 0x110000 && (code < 0xD800 || code > 0xDFFF);
    if (is_utf8(text) != valid || is_utf8(text + "a") != valid) FAIL("U+", code);
    for (size_t n = 1; n < text.size(); ++n) {
      if (is_utf8(text.substr(0, n)) || is_utf8(text.substr(n))) FAIL("a part of U+", code);
    }
  }
  CHECK(is_utf8(""));
  for (const char* longer : {"\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF", "\xF8\x88\x80\x80\x80"}) {
    CHECK(!is_utf8(longer));
  }
}

TEST_CASE("messages show control characters and what is no UTF-8 as numbers, and the rest as it is") {
  CHECK(readable("plain \\ text") == "plain \\ text");
  CHECK(readable("caf\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x99\x82") == "caf\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x99\x82");
  CHECK(readable("\x1b[31m\n\t\x7f") == "\\x1b[31m\\x0a\\x09\\x7f");
  CHECK(readable(std::string("a\0b", 3)) == "a\\x00b");
  CHECK(readable("\xC2\x9B"
                 "31m") == "\\xc2\\x9b31m");  // U+009B also begins terminal commands
  CHECK(readable("\xFF\xC3( \xED\xA0\x80") == "\\xff\\xc3( \\xed\\xa0\\x80");
  CHECK(readable("cut off\xE2\x82") == "cut off");
}

TEST_CASE("whatever a text is and however little room there is, what messages show of it is UTF-8 that fits") {
  kvq_test::Random random(1);
  const std::array<std::string, 8> pieces = {"a",    "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x99\x82",
                                             "\x1b", "\xC2\x85", "\xFF",         "\xE2\x82"};
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (int n = round % 12; n > 0; --n) text += pieces[static_cast<size_t>(random.uniform() * 8)];
    const auto room = static_cast<size_t>(random.uniform() * 20);
    const std::string shown = readable(text, room);
    REQUIRE(shown.size() <= room);
    REQUIRE(is_utf8(shown));
    for (const char c : shown) REQUIRE((static_cast<uint8_t>(c) >= 0x20 && c != 0x7F));
    REQUIRE(readable(text).starts_with(shown));
  }
}

TEST_CASE("long texts are cut between characters") {
  std::string text;
  for (int i = 0; i < 40; ++i) text += "\xE2\x82\xAC";
  const std::string shown = Quoted(text).c_str();
  CHECK(shown.ends_with("\xE2\x82\xAC..."));
  CHECK(shown.size() < 64);
  CHECK(std::string(Quoted("\x1b\xE2\x82\xAC").c_str()) == "\\x1b\xE2\x82\xAC");
}

TEST_CASE("a caller's message is UTF-8, also where the text in it is too long") {
  CHECK(message_of("\x1b]0;\x07") == "name '\\x1b]0;\\x07'");
  for (size_t shift = 0; shift < 4; ++shift) {
    std::string text(shift, 'a');
    while (text.size() < 400) text += "\xF0\x9F\x99\x82";
    const std::string message = message_of(text.c_str());
    CHECK(is_utf8(message));
    CHECK(message.size() > 250);
  }
  for (size_t shift = 0; shift < 4; ++shift) {
    const std::string message = message_of((std::string(shift, 'a') + std::string(400, '\x01')).c_str());
    CHECK(is_utf8(message));
    CHECK(message.ends_with("\\x01"));
  }
}

}  // namespace text_test
