#include "formats/format_name.h"

#include "formats/codec.h"

namespace kvq {
namespace {

constexpr std::string_view kHadamard = "+hadamard";
constexpr std::string_view kNoCentre = "+nocentre";

/// Whether a name ends so; then without that.
bool take(std::string_view& name, std::string_view ending) {
  if (!name.ends_with(ending)) return false;
  name.remove_suffix(ending.size());
  return true;
}

}  // namespace

std::string format_names() {
  std::string list;
  for (const Codec* codec : all_codecs()) {
    for (const CodecKind& each : codec->kinds) list.append(list.empty() ? "" : ", ").append(each.name);
  }
  return list;
}

std::optional<SideFormat> parse_format(std::string_view name) {
  const bool hadamard = take(name, kHadamard);
  const bool no_centre = take(name, kNoCentre);
  for (const Codec* codec : all_codecs()) {
    if ((hadamard && !codec->takes_hadamard) || (no_centre && !codec->takes_page_mean)) continue;
    for (const CodecKind& each : codec->kinds) {
      if (name != each.name) continue;
      return SideFormat{.kind = each.kind,
                        .hadamard = hadamard || codec->always_hadamard,
                        .page_mean = codec->takes_page_mean && !no_centre};
    }
  }
  return {};
}

std::string format_name(const SideFormat& format) {
  const Codec& codec = codec_of(format.kind);
  std::string name(describe(format.kind).name);
  if (format.hadamard && codec.takes_hadamard) name += kHadamard;
  if (!format.page_mean && codec.takes_page_mean) name += kNoCentre;
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
