#pragma once

#include "cache/policy.h"

#include <string>

namespace kvq::io {

/// The long form of a policy, which read_policy() reads: defaults are left out, and successive layers with the same
/// formats are one range.
std::string write_policy(const Policy& policy);

}  // namespace kvq::io
