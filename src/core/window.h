#pragma once

#include "core/host_device.h"

#include <cstdint>

namespace kvq {

/// The newest position that a query does not see although it is before its own; −1 or less: there is none. `window`:
/// positive: the query sees so many positions, up to its own; negative: those from the beginning of its chunk of
/// −window positions on; 0: all.
KVQ_HOST_DEVICE constexpr int64_t newest_hidden(int32_t position, int32_t window) {
  if (window >= 0) return window == 0 ? -1 : static_cast<int64_t>(position) - window;
  const uint32_t chunk = 0U - static_cast<uint32_t>(window);
  return position - static_cast<int64_t>(static_cast<uint32_t>(position) % chunk) - 1;
}

}  // namespace kvq
