#include "io/policy_yaml.h"

#include "core/error.h"
#include "core/text.h"
#include "formats/codec.h"
#include "formats/format_name.h"
#include "formats/router/router.h"
#include "io/yaml_document.h"

#include <algorithm>
#include <array>
#include <climits>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvq::io {
namespace {

using Kind = YamlNode::Kind;

bool takes_centres(const SideFormat& format) { return codec_of(format.code).takes_centres; }

/// By Centre.
constexpr std::array<std::string_view, 3> kCentres = {"none", "page", "trained"};

Centre read_centre(const YamlNode& node) {
  Centre centre{};
  read_choice(node, "centres", kCentres, list_of(kCentres, " or "), centre);
  return centre;
}

bool says_centres(std::string_view name) { return name.ends_with("+centres") || name.ends_with("+nocentre"); }

/// Sets the centres of formats that were read from somewhere in a document.
class DefaultCentres {
 public:
  explicit DefaultCentres(Centre centre) : centre_(centre) {}

  void apply(std::string_view name, SideFormat& format) const {
    if (takes_centres(format) && !says_centres(name)) format.centre = centre_;
  }

  void apply(const YamlNode& node, SideFormat& format) const {
    if (node.kind != Kind::kMap) return apply(node.scalar, format);
    if (node.member("centres") == nullptr) apply(node.member("format")->scalar, format);
  }

  void apply(const YamlNode& pair, FormatPair& formats) const {
    const std::string_view name = pair.scalar;
    const size_t slash = name.find('/');
    apply(name.substr(0, slash), formats.keys);
    apply(slash == std::string_view::npos ? name : name.substr(slash + 1), formats.values);
  }

 private:
  Centre centre_;
};

/// `centres` of one format.
void read_centres(const YamlNode& node, SideFormat& format) {
  if (!takes_centres(format)) {
    fail_at(node, "centres are given for %s, but are for gain-shape formats", kind_name(format).c_str());
  }
  format.centre = read_centre(node);
}

/// `centres` of a whole policy: for its gain–shape formats in `root` that do not say it themselves.
void read_default_centres(const YamlNode& node, const YamlNode& root, Policy& policy) {
  const DefaultCentres centres(read_centre(node));
  if (const YamlNode* keys = root.member("keys")) centres.apply(*keys, policy.keys);
  if (const YamlNode* values = root.member("values")) centres.apply(*values, policy.values);
  for (size_t i = 0; i < policy.overrides.size(); ++i) {
    const YamlNode& entry = root.member("layers")->items[i];
    if (const YamlNode* keys = entry.member("keys")) centres.apply(*keys, *policy.overrides[i].keys);
    if (const YamlNode* values = entry.member("values")) centres.apply(*values, *policy.overrides[i].values);
  }
  for (size_t i = 0; i < policy.experts.size(); ++i) {
    centres.apply(root.member("router")->member("experts")->items[i], policy.experts[i]);
  }
}

constexpr std::array<std::string_view, 2> kBooleans = {"false", "true"};

SideFormat read_format_name(const YamlNode& node, const char* key, std::string_view name) {
  const std::optional<SideFormat> format = parse_format(name);
  if (format.has_value()) return *format;
  fail_at(node, "%s is \"%s\", %s", key, Quoted(node.scalar).c_str(), format_name_advice(name).c_str());
}

void read_hadamard(const YamlNode& node, SideFormat& format) {
  bool wanted = false;
  read_choice(node, "hadamard", kBooleans, "true or false", wanted);
  const Codec& codec = codec_of(format.code);
  if (codec.takes_hadamard) {
    format.rotation = wanted ? Rotation::kHadamard : Rotation::kNone;
  } else if (wanted && !codec.always_hadamard) {
    fail_at(node, "hadamard is true for %s: rotation is for integer formats", kind_name(format).c_str());
  } else if (!wanted && codec.always_hadamard) {
    fail_at(node, "hadamard is false for %s, which is always rotated", kind_name(format).c_str());
  }
}

void read_group(const YamlNode& node, SideFormat& format) {
  const int32_t group = read_int(node, "group", 32, 128);
  if (group != 32 && group != 64 && group != 128) fail_at(node, "group is %d, must be 32, 64 or 128", group);
  format.group = static_cast<uint8_t>(group);
}

SideFormat read_format_name(const YamlNode& node, const char* key) {
  if (!node.is_scalar()) fail_at(node, "%s must be the name of a format: %s", key, format_names().c_str());
  return read_format_name(node, key, node.scalar);
}

/// FORMAT or KEYS/VALUES.
FormatPair read_format_pair(const YamlNode& node, const char* key, std::string_view name) {
  const size_t slash = name.find('/');
  const SideFormat keys = read_format_name(node, key, name.substr(0, slash));
  if (slash == std::string_view::npos) return {keys, keys};
  return {keys, read_format_name(node, key, name.substr(slash + 1))};
}

SideFormat read_format(const YamlNode& node, const char* key) {
  if (node.kind != Kind::kMap) return read_format_name(node, key);
  const YamlNode* named = node.member("format");
  if (named == nullptr) fail_at(node, "%s lacks \"format\"", key);
  const bool takes_group = key == std::string_view("values");
  SideFormat format = read_format_name(*named, "format");
  for (const auto& [name, value] : node.members) {
    if (name == "format") continue;
    if (name == "hadamard") {
      read_hadamard(value, format);
    } else if (name == "centres") {
      read_centres(value, format);
    } else if (name == "group" && takes_group) {
      read_group(value, format);
    } else {
      fail_unknown(value, name, takes_group ? "format, hadamard, centres, group" : "format, hadamard, centres");
    }
  }
  if (!codec_of(format.code).takes_groups) format.group = SideFormat{}.group;
  return format;
}

void read_range(const YamlNode& node, const char*, Policy::Override& entry) {
  if (node.kind != Kind::kSequence || node.items.size() != 2) fail_at(node, "range must be [first, last]");
  entry.first_layer = read_int(node.items[0], "range[0]", 0, 65535);
  entry.last_layer = read_int(node.items[1], "range[1]", 0, 65535);
  if (entry.last_layer < entry.first_layer) {
    fail_at(node, "range is [%d, %d], its end is before its beginning", entry.first_layer, entry.last_layer);
  }
}

/// Reads a member of a policy or of an entry of its layers.
template <auto member>
constexpr auto kReadFormat =
    [](const YamlNode& node, const char* key, auto& target) { target.*member = read_format(node, key); };

template <auto member, int32_t low>
constexpr auto kReadPages = [](const YamlNode& node, const char* key, Policy& policy) {
  policy.*member = read_int(node, key, low, INT_MAX / kPageSlots);
};

template <typename Target>
void read_window(const YamlNode& node, const char* key, Target& target) {
  target.window = read_int(node, key, 0, INT_MAX);
}

constexpr auto kOverrideMembers =
    std::to_array<Member<Policy::Override>>({{"range", read_range},
                                             {"keys", kReadFormat<&Policy::Override::keys>},
                                             {"values", kReadFormat<&Policy::Override::values>},
                                             {"window", read_window<Policy::Override>}});

void read_calibrate(const YamlNode& node, const char* key, Policy& policy) {
  constexpr std::array<std::string_view, 2> kChoices = {"none", "first"};  // by whether it calibrates
  bool first = false;
  read_choice(node, key, kChoices, list_of(kChoices, " or "), first);
  policy.calibrate = first;
}

void read_layers(const YamlNode& node, const char*, Policy& policy) {
  if (node.kind != Kind::kSequence) fail_at(node, "layers must be a list");
  policy.overrides.reserve(node.items.size());
  for (const YamlNode& item : node.items) {
    require_map(item, "an entry of layers");
    Policy::Override& entry = policy.overrides.emplace_back(Policy::Override{-1, -1, {}, {}, {}});
    read_members(item, kOverrideMembers, entry);
    if (entry.first_layer < 0) fail_at(item, "an entry of layers lacks \"range\"");
  }
}

/// What a policy says of how a codec works.
void read_options(const YamlNode& node, const char* key, Policy& policy) {
  const Codec& codec = **std::ranges::find(all_codecs(), std::string_view(key), &Codec::name);
  OptionValues& values = policy.options.of(codec);
  require_map(node, key);
  for (const auto& [name, value] : node.members) {
    const auto option = std::ranges::find(codec.options, name, &CodecOption::name);
    if (option == codec.options.end()) {
      std::vector<std::string_view> names;
      for (const CodecOption& each : codec.options) names.push_back(each.name);
      fail_unknown(value, name, list_of(names));
    }
    int32_t& chosen = values[static_cast<size_t>(option - codec.options.begin())];
    if (option->choices.empty()) {
      chosen = read_int(value, name.c_str(), option->low, option->high);
    } else {
      read_choice(value, name, option->choices, list_of(option->choices, " or "), chosen);
    }
  }
}

/// The formats that a router chooses among.
void read_experts(const YamlNode& node, const char*, Policy& policy) {
  if (node.kind != Kind::kSequence || node.items.size() < 2 || node.items.size() > kMaxExperts) {
    fail_at(node, "experts must be a list of 2 to %d formats", kMaxExperts);
  }
  for (const YamlNode& item : node.items) {
    if (!item.is_scalar()) fail_at(item, "an expert must be FORMAT or KEYS/VALUES");
    const FormatPair pair = read_format_pair(item, "an expert", item.scalar);
    if (std::find(policy.experts.begin(), policy.experts.end(), pair) != policy.experts.end()) {
      fail_at(item, "the expert \"%s\" occurs twice", Quoted(item.scalar).c_str());
    }
    policy.experts.push_back(pair);
  }
}

constexpr auto kRouterMembers = std::to_array<Member<Policy>>(
    {{"experts", read_experts}, {"votes", [](const YamlNode& node, const char* key, Policy& policy) {
                                   read_choice(node, key, kVotes, list_of(kVotes, " or "), policy.votes);
                                 }}});

void read_router(const YamlNode& node, const char* key, Policy& policy) {
  require_map(node, key);
  read_members(node, kRouterMembers, policy);
  if (policy.experts.empty()) fail_at(node, "router lacks \"experts\"");
}

/// A router chooses the formats of all layers.
void check_router(const YamlNode& root, const Policy& policy) {
  if (policy.experts.empty()) return;
  for (const auto& [name, value] : root.members) {
    if (name != "keys" && name != "values" && name != "layers") continue;
    fail_at(value, "\"%s\" and \"router\" exclude each other: the router chooses the formats", name.c_str());
  }
}

/// Members of a policy; codecs with options have one each.
std::vector<Member<Policy>> members_of_policy() {
  std::vector<Member<Policy>> members(
      {{"version", [](const YamlNode& node, const char* key, Policy&) { read_int(node, key, 1, 1); }},
       {"keys", kReadFormat<&Policy::keys>},
       {"values", kReadFormat<&Policy::values>},
       {"centres", [](const YamlNode&, const char*, Policy&) {}},  // once all formats are known
       {"sink", kReadPages<&Policy::sink, 0>},
       {"recent", kReadPages<&Policy::recent, 1>},
       {"window", read_window<Policy>},
       {"calibrate", read_calibrate},
       {"layers", read_layers}});
  for (const Codec* codec : all_codecs()) {
    if (!codec->options.empty()) members.push_back({codec->name, read_options});
  }
  members.push_back(
      {"eviction", [](const YamlNode& node, const char*, Policy& of) { of.eviction = read_eviction(node); }});
  members.push_back({"router", read_router});
  return members;
}

}  // namespace

Policy read_policy(Allocator& allocator, std::string_view text) {
  YamlNode root = parse_yaml(text);
  if (root.kind == Kind::kScalar) root.line = 0;
  return read_policy(allocator, root);
}

Policy read_policy(Allocator& allocator, const YamlNode& root) {
  Policy policy(allocator);
  if (root.kind == Kind::kScalar) {
    std::string_view name = root.scalar;
    policy.eviction = take_eviction(root, name);
    const FormatPair pair = read_format_pair(root, "policy", name);
    policy.keys = pair.keys;
    policy.values = pair.values;
    return policy;
  }
  if (root.kind != Kind::kMap) fail_at(root, "a policy is a map, FORMAT or KEYS/VALUES");
  read_members(root, members_of_policy(), policy);
  if (const YamlNode* centres = root.member("centres")) read_default_centres(*centres, root, policy);
  check_router(root, policy);
  return policy;
}

}  // namespace kvq::io
