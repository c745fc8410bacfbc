// What a policy says vectors are stored relative to.
#pragma once

#include "cache/policy.h"
#include "io/yaml_document.h"

namespace kvq::io {

/// Reads `centres` of one format.
void read_centres(const YamlNode& node, SideFormat& format);

/// Reads `centres` of a whole policy: for its gain–shape formats in `root` that do not say it themselves.
void read_default_centres(const YamlNode& node, const YamlNode& root, Policy& policy);

}  // namespace kvq::io
