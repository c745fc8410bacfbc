#include "formats/format_name.h"

namespace kvq {
namespace {

constexpr std::string_view kHadamard = "+hadamard";

}  // namespace

std::optional<SideFormat> parse_format(std::string_view name) {
  if (name == "fp16") return SideFormat{};
  if (name == "commvq") return SideFormat{.codec = Codec::kCommvq, .bits = 0};
  const bool hadamard = name.ends_with(kHadamard);
  if (hadamard) name.remove_suffix(kHadamard.size());
  for (const int bits : {8, 4, 3, 2}) {
    if (name != "int" + std::to_string(bits)) continue;
    return SideFormat{.codec = Codec::kInteger, .bits = static_cast<uint8_t>(bits), .hadamard = hadamard};
  }
  return {};
}

std::string format_name(const SideFormat& format) {
  if (format.codec == Codec::kFloat16) return "fp16";
  if (format.codec == Codec::kCommvq) return "commvq";
  std::string name = "int" + std::to_string(format.bits);
  if (format.hadamard) name += kHadamard;
  return name;
}

std::optional<FormatPair> parse_format_pair(std::string_view name) {
  const size_t slash = name.find('/');
  const std::optional<SideFormat> keys = parse_format(name.substr(0, slash));
  const std::optional<SideFormat> values =
      slash == std::string_view::npos ? keys : parse_format(name.substr(slash + 1));
  if (!keys.has_value() || !values.has_value()) return {};
  return FormatPair{*keys, *values};
}

std::string format_pair_name(const FormatPair& pair) {
  if (pair.keys == pair.values) return format_name(pair.keys);
  return format_name(pair.keys) + "/" + format_name(pair.values);
}

}  // namespace kvq
