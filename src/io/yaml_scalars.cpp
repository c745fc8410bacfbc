#include "io/yaml_scalars.h"

#include "core/error.h"
#include "core/text.h"

#include <charconv>

namespace kvq::io {

std::string at_line(const YamlNode& node) {
  return node.line > 0 ? "yaml line " + std::to_string(node.line) + ": " : std::string();
}

int32_t read_int(const YamlNode& node, const char* key, int32_t low, int32_t high) {
  int32_t value = 0;
  const char* end = node.scalar.data() + node.scalar.size();
  const auto [stop, code] = std::from_chars(node.scalar.data(), end, value);
  if (node.kind != YamlNode::Kind::kScalar || node.scalar.empty() || code != std::errc() || stop != end ||
      value < low || value > high) {
    fail(KVQ_E_FORMAT, "yaml line %d: %s is \"%s\", must be an integer in [%d, %d]", node.line, key,
         Quoted(node.scalar).c_str(), low, high);
  }
  return value;
}

float read_float(const YamlNode& node, const char* key, float low, float high) {
  float value = 0.0F;
  const char* end = node.scalar.data() + node.scalar.size();
  const auto [stop, code] = std::from_chars(node.scalar.data(), end, value);
  if (node.kind != YamlNode::Kind::kScalar || code != std::errc() || stop != end || !(value >= low && value <= high)) {
    fail(KVQ_E_FORMAT, "yaml line %d: %s is \"%s\", must be a number in [%g, %g]", node.line, key,
         Quoted(node.scalar).c_str(), static_cast<double>(low), static_cast<double>(high));
  }
  return value;
}

void fail_unknown(const YamlNode& node, const std::string& key, const char* known) {
  fail(KVQ_E_FORMAT, "yaml line %d: unknown key \"%s\", known are %s", node.line, Quoted(key).c_str(), known);
}

}  // namespace kvq::io
