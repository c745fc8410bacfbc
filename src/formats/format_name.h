#pragma once

#include "formats/page_format.h"

#include <optional>
#include <string>
#include <string_view>

namespace kvq {

inline constexpr const char* kFormatNames = "fp16, int8, int4, int3, int2, commvq";

/// `fp16`, `int8` … `int2` or `commvq`, with `+hadamard` after an integer format; nothing if it is not one of them.
std::optional<SideFormat> parse_format(std::string_view name);
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
