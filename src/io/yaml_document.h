#pragma once

#include "core/error.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvq::io {

/// Parsed YAML value with its line. Supports only what policies need: no aliases, no duplicate keys, limited depth.
struct YamlNode {
  enum class Kind { kNull, kScalar, kSequence, kMap };

  YamlNode() = default;
  YamlNode(Kind kind_, int line_, std::string scalar_ = {}) : kind(kind_), line(line_), scalar(std::move(scalar_)) {}

  bool is_scalar() const { return kind == Kind::kScalar; }
  /// The member of a map; null if there is none.
  const YamlNode* member(std::string_view name) const;

  Kind kind = Kind::kNull;
  int line = 1;  // 0: a name without document
  std::string scalar;
  std::vector<YamlNode> items;                            // kSequence
  std::vector<std::pair<std::string, YamlNode>> members;  // kMap
};

/// Longest parsed text, unless a reader raises it.
inline constexpr size_t kMaxYamlBytes = size_t{1} << 20U;

/// Parse one document of at most `most` bytes. Throws KVQ_E_FORMAT.
YamlNode parse_yaml(std::string_view text, size_t most = kMaxYamlBytes);

/// Throw KVQ_E_FORMAT with a message that begins "yaml line 3: ", unless the node is a name without document.
[[noreturn]] void fail_at(const YamlNode& node, const char* format, ...) __attribute__((format(KVQ_PRINTF, 2, 3)));
/// Throw that `key` is not `expected`, with the node's text.
[[noreturn]] void refuse(const YamlNode& node, std::string_view key, const std::string& expected);
void require_map(const YamlNode& node, const char* what);

/// Names separated by commas; `last`: before the last one.
std::string list_of(std::span<const std::string_view> names, const char* last = ", ");

/// Read a number within limits. Throws KVQ_E_FORMAT with the line, the key and the value.
int32_t read_int(const YamlNode& node, const char* key, int32_t low, int32_t high);
float read_float(const YamlNode& node, const char* key, float low, float high);

/// Read one of `names`, which are in the order of the enumerators.
template <typename Enum>
void read_choice(const YamlNode& node, std::string_view key, std::span<const std::string_view> names,
                 const std::string& expected, Enum& choice) {
  const auto found = std::find(names.begin(), names.end(), node.scalar);
  if (!node.is_scalar() || found == names.end()) refuse(node, key, expected);
  choice = static_cast<Enum>(found - names.begin());
}

[[noreturn]] void fail_unknown(const YamlNode& node, const std::string& key, const std::string& known);

/// A member of a map that describes a Target, and its reader.
template <typename Target>
struct Member {
  const char* name;
  void (*read)(const YamlNode& node, const char* key, Target& target);
};

/// Read the members of a map, all of which must be in the array `known` of Members.
template <typename Target>
void read_members(const YamlNode& node, const auto& known, Target& target) {
  for (const auto& [name, value] : node.members) {
    const auto found = std::ranges::find(known, name, &Member<Target>::name);
    if (found == known.end()) {
      std::vector<std::string_view> names(known.size());
      std::ranges::transform(known, names.begin(), &Member<Target>::name);
      fail_unknown(value, name, list_of(names));
    }
    found->read(value, found->name, target);
  }
}

}  // namespace kvq::io
