#pragma once

#include "cache/policy.h"
#include "io/yaml_document.h"

#include <string_view>

namespace kvq::io {

/// Read a policy document, or the short form of one format. Throws KVQ_E_FORMAT with the line.
Policy read_policy(Allocator& allocator, std::string_view text);
/// The same of a part of a document.
Policy read_policy(Allocator& allocator, const YamlNode& root);

}  // namespace kvq::io
