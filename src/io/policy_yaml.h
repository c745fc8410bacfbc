#pragma once

#include "cache/policy.h"
#include "io/yaml_document.h"

#include <array>
#include <string>
#include <string_view>

namespace kvq::io {

/// Read a policy document, or the short form of one format. Throws KVQ_E_FORMAT with the line.
Policy read_policy(Allocator& allocator, std::string_view text);
/// The same for a part of a document.
Policy read_policy(Allocator& allocator, const YamlNode& root);

/// The long form of a policy, which read_policy() reads: defaults are left out, and successive layers with the same
/// formats are one range.
std::string write_policy(const Policy& policy);

inline constexpr std::array kVotes = {"layer", "head"};  // by Votes

}  // namespace kvq::io
