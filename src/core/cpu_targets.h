#pragma once

#include <cstdint>

namespace kvq {

/// Whether the processor at hand and its system run what Highway compiles for the target, HWY_AVX2 or HWY_AVX3. Asked
/// here, not of Highway's library, so that its headers are all that is needed.
bool runs_target(int64_t target);

}  // namespace kvq
