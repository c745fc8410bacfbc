#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvq::io {

/// A parsed YAML value with its line. Only what policies need: no aliases, no duplicate keys, limited depth.
struct YamlNode {
  enum class Kind { kNull, kScalar, kSequence, kMap };

  YamlNode() = default;
  YamlNode(Kind kind_, int line_, std::string scalar_ = {}) : kind(kind_), line(line_), scalar(std::move(scalar_)) {}

  Kind kind = Kind::kNull;
  int line = 1;  // 0: of a name alone
  std::string scalar;
  std::vector<YamlNode> items;                            // kSequence
  std::vector<std::pair<std::string, YamlNode>> members;  // kMap
};

/// The longest text that is parsed, unless a reader takes more.
inline constexpr size_t kMaxYamlBytes = size_t{1} << 20U;

/// Parse one document of at most `most` bytes. Throws KVQ_E_FORMAT.
YamlNode parse_yaml(std::string_view text, size_t most = kMaxYamlBytes);

}  // namespace kvq::io
