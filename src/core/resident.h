#pragma once

namespace kvq {

/// Shared, immutable data (a codebook, a router, a packed matrix) as a backend computes with it: where it can reach it
/// and in the order that suits it. The backend makes it once for all that use it at the same time, of memory that the
/// context counts.
class Resident {
 public:
  virtual ~Resident() = default;
};

}  // namespace kvq
