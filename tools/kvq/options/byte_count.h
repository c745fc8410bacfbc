#pragma once

#include <cstdint>
#include <string>

namespace cli {

/// "6GiB", "512 MB", "1000000": a number of bytes with or without a unit, of 1024 (KiB, MiB, GiB, TiB) or 1000 (KB, MB,
/// GB, TB). A UsageError that names `option` for anything else, and for less than a million without a unit.
uint64_t parse_byte_count(const std::string& text, const std::string& option);

}  // namespace cli
