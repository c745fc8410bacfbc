#include "formats/format_name.h"

#include "formats/codec.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <vector>

namespace kvq {
namespace {

constexpr std::string_view kHadamard = "+hadamard";
constexpr std::string_view kNoCentre = "+nocentre";
constexpr std::string_view kCentres = "+centres";

/// Removes `ending` from a name if it is there.
bool take(std::string_view& name, std::string_view ending) {
  if (!name.ends_with(ending)) return false;
  name.remove_suffix(ending.size());
  return true;
}

constexpr int32_t kAnotherLetter = 16;  // costs more than another digit, as much as a missing or extra letter
constexpr size_t kLongestGuess = 32;    // letters of a name to search similar names for

int32_t replacement_cost(char a, char b) {
  if (a == b) return 0;
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  return digit(a) && digit(b) ? 1 + std::abs(a - b) : kAnotherLetter;
}

/// Edit distance of two names.
int32_t difference(std::string_view a, std::string_view b) {
  std::vector<int32_t> costs(b.size() + 1);  // between a prefix of a and each prefix of b
  for (size_t j = 0; j <= b.size(); ++j) costs[j] = kAnotherLetter * static_cast<int32_t>(j);
  for (const char letter : a) {
    int32_t before = costs[0];
    costs[0] += kAnotherLetter;
    for (size_t j = 1; j <= b.size(); ++j) {
      const int32_t replaced = before + replacement_cost(letter, b[j - 1]);
      before = costs[j];
      costs[j] = std::min({replaced, costs[j] + kAnotherLetter, costs[j - 1] + kAnotherLetter});
    }
  }
  return costs[b.size()];
}

/// A prefix of other programs' names, in small letters, and the nearest format.
struct OtherName {
  std::string_view begin;
  std::string_view format;
};
constexpr std::array<OtherName, 20> kOtherNames = {
    {{"q8", "int8"},  {"fp8", "int8"},  {"f8", "int8"},    {"q6", "int8"},    {"q5", "int8"},
     {"q4", "int4"},  {"iq4", "int4"},  {"iq3", "gs3"},    {"iq2", "gs2"},    {"iq1", "gs1"},
     {"nf4", "int4"}, {"fp4", "int4"},  {"mxfp4", "int4"}, {"nvfp4", "int4"}, {"q3", "int3"},
     {"q2", "int2"},  {"kivi", "int2"}, {"bf16", "fp16"},  {"f16", "fp16"},   {"f32", "fp16"}}};

/// The format nearest to another program's name; empty if none is.
std::string_view nearest_to_other(std::string_view name) {
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto other = std::find_if(kOtherNames.begin(), kOtherNames.end(),
                                  [&](const OtherName& each) { return lower.starts_with(each.begin); });
  return other != kOtherNames.end() ? other->format : std::string_view();
}

/// The most similar name; empty if less than half of it is the same.
std::string nearest_name(std::string_view name) {
  std::string nearest;
  int32_t least = kAnotherLetter * static_cast<int32_t>(name.size()) / 2;
  const auto offer = [&](const std::string& other) {
    const int32_t cost = difference(name, other);
    if (cost >= least) return;
    least = cost;
    nearest = other;
  };
  for (const Codec* codec : all_codecs()) {
    for (const NamedCode& each : codec->codes) {
      const std::string plain(each.name);
      offer(plain);
      if (codec->takes_hadamard) offer(plain + std::string(kHadamard));
      if (codec->takes_centres) offer(plain + std::string(kNoCentre));
    }
    for (const NamedCode& each : codec->codes) {
      if (codec->takes_centres) offer(std::string(each.name) + std::string(kCentres));
    }
  }
  return nearest;
}

}  // namespace

std::string format_names() {
  std::string list;
  for (const Codec* codec : all_codecs()) {
    for (const NamedCode& each : codec->codes) list.append(list.empty() ? "" : ", ").append(each.name);
  }
  return list;
}

std::string format_name_advice(std::string_view name) {
  std::string_view plain = name;
  const bool hadamard = take(plain, kHadamard);
  const bool of_centres = !hadamard && (take(plain, kNoCentre) || take(plain, kCentres));
  const std::optional<SideFormat> format = hadamard || of_centres ? parse_format(plain) : std::nullopt;
  if (format.has_value()) {
    const std::string kind = kind_name(*format);
    const Codec& codec = codec_of(format->code);
    if (of_centres && codec.takes_centres) {
      return "but a format has +centres or +nocentre, not two of them: write " + std::string(plain);
    }
    if (of_centres) return "but only gain-shape formats have centres: write " + kind;
    if (hadamard && codec.always_hadamard) return "but " + kind + " is always rotated: write " + std::string(plain);
    if (hadamard && !codec.takes_hadamard) return "but rotation is for integer formats: write " + kind;
  }
  const std::string file_of(plain.substr(0, plain.find(':')));
  if (file_of.size() < plain.size()) {
    const std::string with_centres = file_of + std::string(kCentres);
    const bool of_format = parse_format(file_of).has_value();
    const std::string& wanted = parse_format(with_centres).has_value() ? with_centres : file_of;
    if (of_format) return "but files are given when a cache is made, not in names: write " + wanted;
  }
  if (const std::string_view nearest = nearest_to_other(name); !nearest.empty()) {
    return "as other programs call a format: write " + std::string(nearest) + ", which is nearest";
  }
  // Error messages have room for no more.
  std::string advice =
      "must be one of " + format_names() + ", with +hadamard (after int), +nocentre or +centres (after gs and gt)";
  const std::string nearest = name.size() <= kLongestGuess ? nearest_name(name) : "";
  if (!nearest.empty()) advice += "; nearest: " + nearest;
  return advice;
}

std::optional<SideFormat> parse_format(std::string_view name) {
  const bool hadamard = take(name, kHadamard);
  const bool no_centre = !hadamard && take(name, kNoCentre);
  const bool centres = !hadamard && !no_centre && take(name, kCentres);
  for (const Codec* codec : all_codecs()) {
    if ((hadamard && !codec->takes_hadamard) || ((no_centre || centres) && !codec->takes_centres)) continue;
    for (const NamedCode& each : codec->codes) {
      if (name != each.name) continue;
      SideFormat format{.code = each.code};
      if (hadamard || codec->always_hadamard) format.rotation = Rotation::kHadamard;
      if (codec->takes_centres && !no_centre) format.centre = centres ? Centre::kTrained : Centre::kPageMean;
      return format;
    }
  }
  return {};
}

std::string kind_name(const SideFormat& format) {
  std::string name(describe(format.code).name);
  if (format.has_trained_centres()) name += kCentres;
  return name;
}

std::string format_name(const SideFormat& format) {
  const Codec& codec = codec_of(format.code);
  std::string name = kind_name(format);
  if (format.is_rotated() && codec.takes_hadamard) name += kHadamard;
  if (codec.takes_centres && format.centre == Centre::kNone) name += kNoCentre;
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
