#include "options/byte_count.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string_view>
#include <utility>

#include "options/command.h"

namespace cli {
namespace {

constexpr std::array<std::pair<std::string_view, double>, 18> kUnits = {{{"", 1.0},
                                                                         {"b", 1.0},
                                                                         {"kb", 1e3},
                                                                         {"mb", 1e6},
                                                                         {"gb", 1e9},
                                                                         {"tb", 1e12},
                                                                         {"kib", 0x1p10},
                                                                         {"mib", 0x1p20},
                                                                         {"gib", 0x1p30},
                                                                         {"tib", 0x1p40},
                                                                         {"k", 0x1p10},
                                                                         {"m", 0x1p20},
                                                                         {"g", 0x1p30},
                                                                         {"t", 0x1p40},
                                                                         {"ki", 0x1p10},
                                                                         {"mi", 0x1p20},
                                                                         {"gi", 0x1p30},
                                                                         {"ti", 0x1p40}}};
constexpr double kMostByteCount = 0x1p60;
constexpr double kLeastWithoutUnit = 1e6;  // whoever writes "8" means no 8 bytes

}  // namespace

uint64_t parse_byte_count(const std::string& text, const std::string& option) {
  double number = 0.0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string unit(end, text.data() + text.size());
  std::erase(unit, ' ');
  std::ranges::transform(unit, unit.begin(), [](unsigned char each) { return std::tolower(each); });
  const auto found = std::ranges::find(kUnits, std::string_view(unit), [](const auto& each) { return each.first; });
  if (code == std::errc() && found != kUnits.end()) {
    const double bytes = std::floor(number * found->second);
    if (unit.empty() && bytes >= 1.0 && bytes < kLeastWithoutUnit) {
      throw UsageError(option + " " + text + ": is a number of bytes, and too few to be meant: write " + text +
                       "GiB, " + text + "MB or, if they are meant, " + text + "B");
    }
    if (bytes >= 1.0 && bytes <= kMostByteCount) return static_cast<uint64_t>(bytes);
  }
  throw UsageError(option + " " + text + ": expected a number of bytes, such as 6GiB, 512MB or 1000000");
}

}  // namespace cli
