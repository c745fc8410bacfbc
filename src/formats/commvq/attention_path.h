#pragma once

#include <cstdint>

namespace kvq {

/// Path of attention to pages with codes. Results are equal except for rounding.
enum class AttentionPath : int32_t {
  kAuto,     // the faster of the next two for the shape
  kTables,   // products of each query with all codes first, then a sum of these for each key, as in the paper
  kRebuild,  // keys rebuilt from their codes, for all queries of a KV head
  kDecode,   // keys and values decoded one by one: the reference for the others
};

}  // namespace kvq
