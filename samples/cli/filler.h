#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace cli {

/** Plain English sentences about nothing in particular, at least `bytes` long, without digits. The same seed gives the
 *  same text everywhere. */
std::string make_filler(size_t bytes, uint64_t seed);

}  // namespace cli
