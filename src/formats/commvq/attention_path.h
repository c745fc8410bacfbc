#pragma once

#include <cstdint>

namespace kvq {

/// Path of attention to pages with codes. Results are equal except for rounding.
enum class AttentionPath : int32_t {
  kAuto,     // the faster of the others for the shape
  kTables,   // products of each query with all codes first, then a sum of these for each key, as in the paper
  kRebuild,  // keys rebuilt from their codes, for all queries of a KV head
};

}  // namespace kvq
