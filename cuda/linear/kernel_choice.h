// Which ways a device can go, and which of them an estimate prefers.
#pragma once

#include "kernels/linear/linear.h"
#include "linear/tuning.h"

#include <cstdint>

namespace kvq::cuda {

/// Whether the device can.
bool can_go(const LinearWay& way, LinearProducts products, const InputRows& rows, const LinearDevice& device);

/// By the shape and the device alone.
LinearWay estimated_way(LinearProducts products, const InputRows& rows, const LinearDevice& device);

/// Calls go(way) for all that the device can.
template <typename Go>
void for_each_way(LinearProducts products, const InputRows& rows, const LinearDevice& device, const Go& go) {
  const auto offer = [&](const LinearWay& way) {
    if (can_go(way, products, rows, device)) go(way);
  };
  offer(kOwnInputs);
  offer(kFewRows);
  for (const int32_t tile_rows : kTileRowCounts) {
    for (int32_t cluster = 1; cluster <= kMostCluster; ++cluster) offer({false, tile_rows, cluster});
  }
}

}  // namespace kvq::cuda
