#pragma once

namespace kvq {

/// Shared, immutable data (a codebook, a router, a packed matrix) in a backend's own memory and layout. The backend
/// makes it once for all simultaneous users, in memory that the context counts.
class Resident {
 public:
  virtual ~Resident() = default;
};

}  // namespace kvq
