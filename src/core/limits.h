#pragma once

#include "kvq.h"

#include <cstdint>

namespace kvq {

inline constexpr int32_t kPageSlots = KVQ_PAGE_SLOTS;
inline constexpr int32_t kMaxHeadDim = 256;

}  // namespace kvq
