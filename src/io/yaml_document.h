#pragma once

#include <cstddef>
#include <cstdint>
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

/// Start of a message, "yaml line 3: "; empty for a name without document.
std::string at_line(const YamlNode& node);

/// Read a number within limits. Throws KVQ_E_FORMAT with the line, the key and the value.
int32_t read_int(const YamlNode& node, const char* key, int32_t low, int32_t high);
float read_float(const YamlNode& node, const char* key, float low, float high);

[[noreturn]] void fail_unknown(const YamlNode& node, const std::string& key, const char* known);

}  // namespace kvq::io
