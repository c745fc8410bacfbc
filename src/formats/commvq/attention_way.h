#pragma once

#include <cstdint>

namespace kvq {

/// How queries meet pages with codes. Results are the same but for rounding.
enum class AttentionWay : int32_t {
  kAuto,     // whichever of the next two is faster for the shape
  kTables,   // products of each query with all codes first, then sums of these for each key, as in the paper
  kRebuild,  // keys summed up from their codes, for all queries of a KV head
  kDecode,   // keys and values decoded one by one: what the others are measured against
};

}  // namespace kvq
