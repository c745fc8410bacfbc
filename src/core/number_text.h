// Numbers as text, in any locale.
#pragma once

#include <charconv>
#include <cstddef>
#include <span>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <version>

namespace kvq {

/// What std::from_chars and std::to_chars do with floating-point numbers that are finite, for C++ libraries in which
/// these take integers alone, as libc++'s for long. Numbers are float and double.
template <typename Number>
bool parse_floating(std::string_view text, Number& value);
template <typename Number>
size_t write_floating(std::span<char> out, Number value);

#if defined(__cpp_lib_to_chars)
inline constexpr bool kHasFloatingChars = true;
#else
inline constexpr bool kHasFloatingChars = false;
#endif

/// Read a number that is all of `text`; false if there is none. `format` as in std::from_chars.
template <typename Number, typename... Format>
bool parse_number(std::string_view text, Number& value, Format... format) {
  if constexpr (std::is_floating_point_v<Number> && !kHasFloatingChars) {
    return parse_floating(text, value);
  } else {
    const char* end = text.data() + text.size();
    const auto [stop, code] = std::from_chars(text.data(), end, value, format...);
    return code == std::errc() && stop == end;
  }
}

/// Write the shortest text that reads back as the same number to `out`, which has room; returns its length. `format` as
/// in std::to_chars.
template <typename Number, typename... Format>
size_t write_number(std::span<char> out, Number value, Format... format) {
  if constexpr (std::is_floating_point_v<Number> && !kHasFloatingChars) {
    return write_floating(out, value);
  } else {
    return static_cast<size_t>(std::to_chars(out.data(), out.data() + out.size(), value, format...).ptr - out.data());
  }
}

}  // namespace kvq
