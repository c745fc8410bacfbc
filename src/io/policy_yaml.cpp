#include "io/policy_yaml.h"

#include "core/error.h"
#include "core/text.h"
#include "formats/codec.h"
#include "formats/format_name.h"
#include "formats/router/router.h"
#include "io/yaml_document.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvq::io {
namespace {

using Kind = YamlNode::Kind;

bool read_bool(const YamlNode& node, const char* key) {
  if (node.kind == Kind::kScalar && (node.scalar == "true" || node.scalar == "false")) return node.scalar == "true";
  fail(KVQ_E_FORMAT, "yaml line %d: %s is \"%s\", must be true or false", node.line, key, Quoted(node.scalar).c_str());
}

SideFormat read_format_name(const YamlNode& node, const char* key, std::string_view name) {
  const std::optional<SideFormat> format = parse_format(name);
  if (format.has_value()) return *format;
  fail(KVQ_E_FORMAT, "%s%s is \"%s\", %s", at_line(node).c_str(), key, Quoted(node.scalar).c_str(),
       format_name_advice(name).c_str());
}

void read_hadamard(const YamlNode& node, SideFormat& format) {
  const bool wanted = read_bool(node, "hadamard");
  const Codec& codec = codec_of(format.code);
  if (codec.takes_hadamard) {
    format.rotation = wanted ? Rotation::kHadamard : Rotation::kNone;
  } else if (wanted && !codec.always_hadamard) {
    fail(KVQ_E_FORMAT, "yaml line %d: hadamard is true for %s: rotation is for integer formats", node.line,
         kind_name(format).c_str());
  } else if (!wanted && codec.always_hadamard) {
    fail(KVQ_E_FORMAT, "yaml line %d: hadamard is false for %s, which is always rotated", node.line,
         kind_name(format).c_str());
  }
}

void read_group(const YamlNode& node, SideFormat& format) {
  const int32_t group = read_int(node, "group", 32, 128);
  if (group != 32 && group != 64 && group != 128) {
    fail(KVQ_E_FORMAT, "yaml line %d: group is %d, must be 32, 64 or 128", node.line, group);
  }
  format.group = static_cast<uint8_t>(group);
}

SideFormat read_format_name(const YamlNode& node, const char* key) {
  if (node.kind != Kind::kScalar) {
    fail(KVQ_E_FORMAT, "yaml line %d: %s must be the name of a format: %s", node.line, key, format_names().c_str());
  }
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
  const auto named = std::find_if(node.members.begin(), node.members.end(),
                                  [](const auto& member) { return member.first == "format"; });
  if (named == node.members.end()) fail(KVQ_E_FORMAT, "yaml line %d: %s lacks \"format\"", node.line, key);
  SideFormat format = read_format_name(named->second, "format");
  for (const auto& [name, value] : node.members) {
    if (name == "format") continue;
    if (name == "hadamard") {
      read_hadamard(value, format);
    } else if (name == "centres") {
      read_centres(value, format);
    } else if (name == "group" && std::strcmp(key, "values") == 0) {
      read_group(value, format);
    } else {
      fail_unknown(value, name,
                   std::strcmp(key, "values") == 0 ? "format, hadamard, centres, group" : "format, hadamard, centres");
    }
  }
  if (!codec_of(format.code).takes_groups) format.group = SideFormat{}.group;
  return format;
}

Policy::Override read_override(const YamlNode& node) {
  if (node.kind != Kind::kMap) fail(KVQ_E_FORMAT, "yaml line %d: an entry of layers must be a map", node.line);
  Policy::Override entry{-1, -1, {}, {}};
  for (const auto& [name, value] : node.members) {
    if (name == "range") {
      if (value.kind != Kind::kSequence || value.items.size() != 2) {
        fail(KVQ_E_FORMAT, "yaml line %d: range must be [first, last]", value.line);
      }
      entry.first_layer = read_int(value.items[0], "range[0]", 0, 65535);
      entry.last_layer = read_int(value.items[1], "range[1]", 0, 65535);
      if (entry.last_layer < entry.first_layer) {
        fail(KVQ_E_FORMAT, "yaml line %d: range is [%d, %d], its end is before its beginning", value.line,
             entry.first_layer, entry.last_layer);
      }
    } else if (name == "keys") {
      entry.keys = read_format(value, "keys");
    } else if (name == "values") {
      entry.values = read_format(value, "values");
    } else {
      fail_unknown(value, name, "range, keys, values");
    }
  }
  if (entry.first_layer < 0) fail(KVQ_E_FORMAT, "yaml line %d: an entry of layers lacks \"range\"", node.line);
  return entry;
}

void read_layers(const YamlNode& node, Policy& policy) {
  if (node.kind != Kind::kSequence) fail(KVQ_E_FORMAT, "yaml line %d: layers must be a list", node.line);
  policy.overrides.reserve(node.items.size());
  for (const YamlNode& item : node.items) policy.overrides.push_back(read_override(item));
}

std::string list_of(std::span<const std::string_view> names, const char* last) {
  std::string list;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) list += i + 1 == names.size() ? last : ", ";
    list += names[i];
  }
  return list;
}

int32_t read_choice(const YamlNode& node, const CodecOption& option) {
  for (size_t i = 0; node.kind == Kind::kScalar && i < option.choices.size(); ++i) {
    if (node.scalar == option.choices[i]) return static_cast<int32_t>(i);
  }
  fail(KVQ_E_FORMAT, "yaml line %d: %s is \"%s\", must be %s", node.line, std::string(option.name).c_str(),
       Quoted(node.scalar).c_str(), list_of(option.choices, " or ").c_str());
}

/// What a policy says of how a codec works.
void read_options(const YamlNode& node, const Codec& codec, OptionValues& values) {
  if (node.kind != Kind::kMap) fail(KVQ_E_FORMAT, "yaml line %d: %s must be a map", node.line, codec.name);
  for (const auto& [name, value] : node.members) {
    const auto option = std::find_if(codec.options.begin(), codec.options.end(),
                                     [wanted = name](const CodecOption& each) { return each.name == wanted; });
    if (option == codec.options.end()) {
      std::vector<std::string_view> names;
      for (const CodecOption& each : codec.options) names.push_back(each.name);
      fail_unknown(value, name, list_of(names, ", ").c_str());
    }
    values[static_cast<size_t>(option - codec.options.begin())] =
        option->choices.empty() ? read_int(value, name.c_str(), option->low, option->high)
                                : read_choice(value, *option);
  }
}

/// The codec that has options under this name, or null.
const Codec* codec_with_options(std::string_view name) {
  const auto codecs = all_codecs();
  const auto found = std::find_if(codecs.begin(), codecs.end(), [name](const Codec* codec) {
    return name == codec->name && !codec->options.empty();
  });
  return found != codecs.end() ? *found : nullptr;
}

/// The names of codecs' options, each with a comma after it.
std::string sections_of_codecs() {
  std::string list;
  for (const Codec* codec : all_codecs()) {
    if (!codec->options.empty()) list.append(codec->name).append(", ");
  }
  return list;
}

/// The formats that a router chooses among.
void read_experts(const YamlNode& node, Policy& policy) {
  if (node.kind != Kind::kSequence || node.items.size() < 2 || node.items.size() > kMaxExperts) {
    fail(KVQ_E_FORMAT, "yaml line %d: experts must be a list of 2 to %d formats", node.line, kMaxExperts);
  }
  for (const YamlNode& item : node.items) {
    if (item.kind != Kind::kScalar) {
      fail(KVQ_E_FORMAT, "yaml line %d: an expert must be FORMAT or KEYS/VALUES", item.line);
    }
    const FormatPair pair = read_format_pair(item, "an expert", item.scalar);
    if (std::find(policy.experts.begin(), policy.experts.end(), pair) != policy.experts.end()) {
      fail(KVQ_E_FORMAT, "yaml line %d: the expert \"%s\" occurs twice", item.line, Quoted(item.scalar).c_str());
    }
    policy.experts.push_back(pair);
  }
}

void read_router(const YamlNode& node, Policy& policy) {
  if (node.kind != Kind::kMap) fail(KVQ_E_FORMAT, "yaml line %d: router must be a map", node.line);
  for (const auto& [name, value] : node.members) {
    if (name == "experts") {
      read_experts(value, policy);
    } else if (name == "votes") {
      const auto choice = std::find(kVotes.begin(), kVotes.end(), value.scalar);
      if (choice == kVotes.end()) {
        fail(KVQ_E_FORMAT, "yaml line %d: votes is \"%s\", must be %s or %s", value.line, Quoted(value.scalar).c_str(),
             kVotes[0], kVotes[1]);
      }
      policy.votes = static_cast<Votes>(choice - kVotes.begin());
    } else {
      fail_unknown(value, name, "experts, votes");
    }
  }
  if (policy.experts.empty()) fail(KVQ_E_FORMAT, "yaml line %d: router lacks \"experts\"", node.line);
}

/// A router chooses the formats of all layers.
void check_router(const YamlNode& root, const Policy& policy) {
  if (policy.experts.empty()) return;
  for (const auto& [name, value] : root.members) {
    if (name != "keys" && name != "values" && name != "layers") continue;
    fail(KVQ_E_FORMAT, "yaml line %d: \"%s\" and \"router\" exclude each other: the router chooses the formats",
         value.line, name.c_str());
  }
}

void read_member(const std::string& name, const YamlNode& value, Policy& policy) {
  if (name == "version") {
    read_int(value, "version", 1, 1);
  } else if (name == "keys") {
    policy.keys = read_format(value, "keys");
  } else if (name == "values") {
    policy.values = read_format(value, "values");
  } else if (name == "sink") {
    policy.sink = read_int(value, "sink", 0, INT_MAX / kPageSlots);
  } else if (name == "recent") {
    policy.recent = read_int(value, "recent", 1, INT_MAX / kPageSlots);
  } else if (name == "centres") {
    // Once all formats are known.
  } else if (name == "layers") {
    read_layers(value, policy);
  } else if (const Codec* codec = codec_with_options(name)) {
    read_options(value, *codec, policy.options.of(*codec));
  } else if (name == "eviction") {
    policy.eviction = read_eviction(value);
  } else if (name == "router") {
    read_router(value, policy);
  } else {
    const std::string known =
        "version, keys, values, centres, sink, recent, layers, " + sections_of_codecs() + "eviction, router";
    fail_unknown(value, name, known.c_str());
  }
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
  if (root.kind != Kind::kMap) fail(KVQ_E_FORMAT, "yaml line %d: a policy is a map, FORMAT or KEYS/VALUES", root.line);
  for (const auto& [name, value] : root.members) read_member(name, value, policy);
  for (const auto& [name, value] : root.members) {
    if (name == "centres") read_default_centres(value, root, policy);
  }
  check_router(root, policy);
  return policy;
}

}  // namespace kvq::io
