// Numbers as text, where the C++ library does not write floating-point ones.
#include "core/number_text.h"

#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <locale>
#include <random>
#include <string>

namespace number_text_test {
namespace {

/// A locale with other marks.
struct Marks : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

template <typename Number>
std::string written(Number value) {
  std::array<char, 64> text{};
  return {text.data(), kvq::write_floating(text, value)};
}

template <typename Number>
void check_as_to_chars(Number value) {
  std::array<char, 400> expected{};
  auto* const end = std::to_chars(expected.data(), expected.data() + expected.size(), value).ptr;
  const std::string text = written(value);
  CHECK(text == std::string(expected.data(), end));
  Number read = 0;
  CHECK(kvq::parse_floating(text, read));
  CHECK(read == value);
}

template <typename Number, typename Bits>
void check_random() {
  std::mt19937_64 random(7);
  for (int i = 0; i < 3000; ++i) {
    const auto value = std::bit_cast<Number>(static_cast<Bits>(random()));
    if (std::isnormal(value)) check_as_to_chars(value);
    check_as_to_chars(static_cast<Number>(random() % 1000000) / Number{1000});
    check_as_to_chars(static_cast<Number>(random() % 100000) * Number{1000});
  }
}

TEST_CASE("numbers are written as std::to_chars writes them, and read back") {
  check_random<float, uint32_t>();
  check_random<double, uint64_t>();
  for (const double value : {0.0, 1.0, -1.0, 0.1, 100.0, 1e5, 123456.0, 1e22, 0.0001, 0.00001, 1.5e-7,
                             std::numeric_limits<double>::max(), std::numeric_limits<double>::min()}) {
    check_as_to_chars(value);
  }
}

TEST_CASE("numbers are the same text in every locale") {
  const std::locale before = std::locale::global(std::locale(std::locale::classic(), new Marks));
  CHECK(written(1234567.5) == "1234567.5");
  double read = 0.0;
  CHECK(kvq::parse_floating("1234567.5", read));
  CHECK(read == 1234567.5);
  std::locale::global(before);
}

TEST_CASE("what std::from_chars refuses is no number") {
  for (const char* text : {"", " 1", "1 ", "+1", "0x10", "1,5", "1.5.", "--1", "e5", "1e", "1e999", "one", "1f"}) {
    CAPTURE(text);
    double value = 3.0;
    CHECK(!kvq::parse_floating(text, value));
    CHECK(value == 3.0);
  }
  float narrow = 3.0F;
  CHECK(!kvq::parse_floating("1e39", narrow));
}

}  // namespace
}  // namespace number_text_test
