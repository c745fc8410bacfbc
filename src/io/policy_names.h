// Names in policies that reading and writing share.
#pragma once

#include "cache/policy.h"

#include <array>

namespace kvq::io {

inline constexpr std::array kVotes = {"layer", "head"};  // by Votes

}  // namespace kvq::io
