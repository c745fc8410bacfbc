#pragma once

#include "cache/policy.h"

#include <string_view>

namespace kvq::io {

/// Read a policy document, or the short form of one format. Throws KVQ_E_FORMAT with the line.
Policy read_policy(Allocator& allocator, std::string_view text);

}  // namespace kvq::io
