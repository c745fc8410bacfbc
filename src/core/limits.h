#pragma once

#include "kvq.h"

#include <cstdint>

namespace kvq {

inline constexpr int32_t kPageSlots = KVQ_PAGE_SLOTS;
// Channels of a KV head.
inline constexpr int32_t kMaxHeadDim = 576;     // keys
inline constexpr int32_t kMaxValueDim = 512;    // values
inline constexpr int32_t kMaxTrainedDim = 256;  // of models with trained data

}  // namespace kvq
