#pragma once

#include "formats/page_format.h"

#include <optional>
#include <string>
#include <string_view>

namespace kvq {

/// The names of all code types without endings, with commas.
std::string format_names();
/// What is wrong with a name that parse_format() does not read, and what to write instead: the rest of a sentence that
/// says that it is the name.
std::string format_name_advice(std::string_view name);

/// Parse the name of a code type, with `+hadamard` after integers and `+nocentre` or `+centres` after gain–shape codes;
/// nothing if it is none.
std::optional<SideFormat> parse_format(std::string_view name);
/// The name without `+hadamard` and `+nocentre`.
std::string kind_name(const SideFormat& format);
/// The name that parse_format() reads; groups have none.
std::string format_name(const SideFormat& format);

/// The formats of both sides of a page.
struct FormatPair {
  SideFormat keys;
  SideFormat values;

  bool operator==(const FormatPair&) const = default;
};

/// The name of a format for both sides, or KEYS/VALUES, like `int8/int4`.
std::optional<FormatPair> parse_format_pair(std::string_view name);
std::string format_pair_name(const FormatPair& pair);

}  // namespace kvq
