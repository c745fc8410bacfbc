#include "formats/format_name.h"

#include "formats/codec.h"

namespace kvq {
namespace {

constexpr std::string_view kHadamard = "+hadamard";

}  // namespace

std::string format_names() {
  std::string list;
  for (const Codec* codec : all_codecs()) {
    for (const CodecKind& each : codec->kinds) list.append(list.empty() ? "" : ", ").append(each.name);
  }
  return list;
}

std::optional<SideFormat> parse_format(std::string_view name) {
  const bool hadamard = name.ends_with(kHadamard);
  if (hadamard) name.remove_suffix(kHadamard.size());
  for (const Codec* codec : all_codecs()) {
    for (const CodecKind& each : codec->kinds) {
      if (name == each.name && (codec->takes_hadamard || !hadamard)) {
        return SideFormat{.kind = each.kind, .hadamard = hadamard};
      }
    }
  }
  return {};
}

std::string format_name(const SideFormat& format) {
  std::string name(describe(format.kind).name);
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
