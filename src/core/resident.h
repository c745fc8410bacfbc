#pragma once

#include <cstdint>

namespace kvq {

/// Shared, immutable data (a codebook, a router, a packed matrix) as a backend computes with it: where it can reach it
/// and in the order that suits it. The backend makes it once for all that use it at the same time.
class Resident {
 public:
  virtual ~Resident() = default;
  /// Its memory, on the host and on the device, all of which the context counts.
  virtual uint64_t bytes() const noexcept = 0;
};

}  // namespace kvq
