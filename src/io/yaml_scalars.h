// What readers of policies share.
#pragma once

#include "io/yaml_document.h"

#include <cstdint>
#include <string>

namespace kvq::io {

/// "yaml line 3: ", as messages begin; nothing for a node without a line, which is a name and no document.
std::string at_line(const YamlNode& node);

/// A number within limits. Throws KVQ_E_FORMAT with the line, the key and the value.
int32_t read_int(const YamlNode& node, const char* key, int32_t low, int32_t high);
float read_float(const YamlNode& node, const char* key, float low, float high);

[[noreturn]] void fail_unknown(const YamlNode& node, const std::string& key, const char* known);

}  // namespace kvq::io
