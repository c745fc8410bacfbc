#pragma once

#include "formats/page_format.h"

#include <optional>
#include <string>
#include <string_view>

namespace kvq {

/// Names of all code types without endings, separated by commas.
std::string format_names();
/// Explains why parse_format() rejects a name, and suggests another: the end of a sentence that quotes the name.
std::string format_name_advice(std::string_view name);

/// Parse the name of a code type, with `+hadamard` after integers and `+nocentre` or `+centres` after gain–shape codes;
/// nothing if it is none.
std::optional<SideFormat> parse_format(std::string_view name);
/// The name without `+hadamard` and `+nocentre`.
std::string kind_name(const SideFormat& format);
/// The name that parse_format() reads; omits the group.
std::string format_name(const SideFormat& format);

/// The formats of both sides of a page.
struct FormatPair {
  SideFormat keys;
  SideFormat values;

  bool operator==(const FormatPair&) const = default;
};

/// Parse a format for both sides, or KEYS/VALUES, like `int8/int4`.
std::optional<FormatPair> parse_format_pair(std::string_view name);
std::string format_pair_name(const FormatPair& pair);

}  // namespace kvq
