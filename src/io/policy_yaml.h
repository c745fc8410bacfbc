#pragma once

#include "backend/eviction.h"
#include "cache/policy.h"
#include "io/yaml_document.h"

#include <array>
#include <string>
#include <string_view>

namespace kvq::io {

/// Read the `eviction` of a policy document. Throws KVQ_E_FORMAT with the line.
Eviction read_eviction(const YamlNode& node);

/// A map that read_eviction() reads as `eviction`, without defaults.
std::string write_eviction(const Eviction& eviction);

/// Take a method at the end of a short form, like "+snapkv:128", off `name`; without one there is no eviction. `node`
/// is for messages.
Eviction take_eviction(const YamlNode& node, std::string_view& name);

/// `eviction` with the method of that name and that budget. Throws KVQ_E_ARGUMENT.
Eviction with_method(Eviction eviction, std::string_view method, int32_t budget);

/// Read a policy document, or the short form of one format. Throws KVQ_E_FORMAT with the line.
Policy read_policy(Allocator& allocator, std::string_view text);
/// The same for a part of a document.
Policy read_policy(Allocator& allocator, const YamlNode& root);

/// The long form of a policy, which read_policy() reads: defaults are left out, and successive layers with the same
/// formats are one range.
std::string write_policy(const Policy& policy);

inline constexpr std::array<std::string_view, 2> kVotes = {"layer", "head"};  // by Votes

}  // namespace kvq::io
