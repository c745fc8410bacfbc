// What a policy says vectors are stored relative to.
#pragma once

#include "cache/policy.h"
#include "io/yaml_document.h"

namespace kvq::io {

/// Of one format.
void read_centres(const YamlNode& node, SideFormat& format);

/// Of all gain–shape formats of a policy that was read from `root` and does not say it of them itself.
void read_default_centres(const YamlNode& node, const YamlNode& root, Policy& policy);

}  // namespace kvq::io
