#include "io/policy_yaml.h"

#include "core/error.h"
#include "formats/commvq/key_encoder.h"
#include "formats/format_name.h"
#include "io/eviction_yaml.h"
#include "io/yaml_document.h"
#include "io/yaml_scalars.h"
#include "router/router.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <utility>

namespace kvq::io {
namespace {

using Kind = YamlNode::Kind;

bool read_bool(const YamlNode& node, const char* key) {
  if (node.kind == Kind::kScalar && (node.scalar == "true" || node.scalar == "false")) return node.scalar == "true";
  fail(KVQ_E_FORMAT, "yaml line %d: %s is \"%.40s\", must be true or false", node.line, key, node.scalar.c_str());
}

SideFormat read_format_name(const YamlNode& node, const char* key, std::string_view name) {
  const std::optional<SideFormat> format = parse_format(name);
  if (format.has_value()) return *format;
  if (name == "fp16+hadamard")
    fail(KVQ_E_FORMAT, "yaml line %d: %s is \"fp16+hadamard\": rotation is for integer formats", node.line, key);
  fail(KVQ_E_FORMAT, "yaml line %d: %s is \"%.60s\", must be one of %s, with +hadamard after an int format", node.line,
       key, node.scalar.c_str(), kFormatNames);
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
    fail(KVQ_E_FORMAT, "yaml line %d: %s must be the name of a format: %s", node.line, key, kFormatNames);
  }
  return read_format_name(node, key, node.scalar);
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
      format.hadamard = read_bool(value, "hadamard");
    } else if (name == "group" && std::strcmp(key, "values") == 0) {
      read_group(value, format);
    } else {
      fail_unknown(value, name, std::strcmp(key, "values") == 0 ? "format, hadamard, group" : "format, hadamard");
    }
  }
  if (format.codec == Codec::kInteger) return format;
  const char* what = format.codec == Codec::kFloat16 ? "fp16" : "commvq";
  if (format.hadamard)
    fail(KVQ_E_FORMAT, "yaml line %d: hadamard is true for %s: rotation is for integer formats", node.line, what);
  format.group = SideFormat{}.group;
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
        fail(KVQ_E_FORMAT, "yaml line %d: range is [%d, %d], its end lies before its begin", value.line,
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

AttentionWay read_way(const YamlNode& node) {
  constexpr std::pair<std::string_view, AttentionWay> kWays[] = {{"auto", AttentionWay::kAuto},
                                                                 {"tables", AttentionWay::kTables},
                                                                 {"rebuild", AttentionWay::kRebuild},
                                                                 {"decode", AttentionWay::kDecode}};
  for (const auto& [name, way] : kWays) {
    if (node.kind == Kind::kScalar && node.scalar == name) return way;
  }
  fail(KVQ_E_FORMAT, "yaml line %d: attention is \"%.40s\", must be auto, tables, rebuild or decode", node.line,
       node.scalar.c_str());
}

/// How long to look for codes, and how to attend to them.
void read_commvq(const YamlNode& node, Policy& policy) {
  if (node.kind != Kind::kMap) fail(KVQ_E_FORMAT, "yaml line %d: commvq must be a map", node.line);
  for (const auto& [name, value] : node.members) {
    if (name == "beam") {
      policy.effort.beam = read_int(value, "beam", 1, KeyEncoder::kMaxBeam);
    } else if (name == "flips") {
      policy.effort.flips = read_int(value, "flips", 0, INT_MAX);
    } else if (name == "attention") {
      policy.way = read_way(value);
    } else {
      fail_unknown(value, name, "beam, flips, attention");
    }
  }
}

/// The formats that a router chooses among.
void read_experts(const YamlNode& node, Policy& policy) {
  if (node.kind != Kind::kSequence || node.items.size() < 2 || node.items.size() > kMaxExperts) {
    fail(KVQ_E_FORMAT, "yaml line %d: experts must be a list of 2 to %d formats", node.line, kMaxExperts);
  }
  for (const YamlNode& item : node.items) {
    const auto pair = item.kind == Kind::kScalar ? parse_format_pair(item.scalar) : std::nullopt;
    if (!pair.has_value()) {
      fail(
          KVQ_E_FORMAT,
          "yaml line %d: an expert is \"%.60s\", must be one of %s, with +hadamard after an int format, or two of them "
          "with a slash, for keys and values",
          item.line, item.scalar.c_str(), kFormatNames);
    }
    if (std::find(policy.experts.begin(), policy.experts.end(), *pair) != policy.experts.end()) {
      fail(KVQ_E_FORMAT, "yaml line %d: the expert \"%.60s\" is there twice", item.line, item.scalar.c_str());
    }
    policy.experts.push_back(*pair);
  }
}

void read_router(const YamlNode& node, Policy& policy) {
  if (node.kind != Kind::kMap) fail(KVQ_E_FORMAT, "yaml line %d: router must be a map", node.line);
  for (const auto& [name, value] : node.members) {
    if (name == "experts") {
      read_experts(value, policy);
    } else if (name == "votes") {
      if (value.scalar != "layer" && value.scalar != "head") {
        fail(KVQ_E_FORMAT, "yaml line %d: votes is \"%.40s\", must be layer or head", value.line, value.scalar.c_str());
      }
      policy.votes = value.scalar == "layer" ? Votes::kLayer : Votes::kHead;
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
    fail(KVQ_E_FORMAT, "yaml line %d: \"%s\" and \"router\" are both there, but the router chooses the formats",
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
  } else if (name == "layers") {
    read_layers(value, policy);
  } else if (name == "commvq") {
    read_commvq(value, policy);
  } else if (name == "eviction") {
    policy.eviction = read_eviction(value);
  } else if (name == "router") {
    read_router(value, policy);
  } else {
    fail_unknown(value, name, "version, keys, values, sink, recent, layers, commvq, eviction, router");
  }
}

}  // namespace

Policy read_policy(Allocator& allocator, std::string_view text) {
  const YamlNode root = parse_yaml(text);
  Policy policy(allocator);
  if (root.kind == Kind::kScalar) {
    std::string_view name = root.scalar;
    policy.eviction = take_eviction(root, name);
    policy.keys = policy.values = read_format_name(root, "policy", name);
    return policy;
  }
  if (root.kind != Kind::kMap) fail(KVQ_E_FORMAT, "yaml line %d: a policy is a map or the name of a format", root.line);
  for (const auto& [name, value] : root.members) read_member(name, value, policy);
  check_router(root, policy);
  return policy;
}

}  // namespace kvq::io
