// What kernels know about the trained centres of a layer. All of it lies in device memory.
#pragma once

#include <cstdint>

namespace kvq::cuda {

/// How the nearest of a head's centres is found: kvq::centred::CentreSearch, for all heads.
struct CentreSearchTables {
  const uint32_t* rounded;  // [kv_heads][quads][padded], four channels a word
  const float* means;       // [kv_heads][head_dim]
  const float* scales;      // [kv_heads]
  const float* biases;      // [kv_heads][padded]; of keys, as their page turns them
  const float* own_biases;  // [kv_heads][padded] of keys that are turned by positions of their own, otherwise null
  int32_t padded;           // centres of a head, rounded up to 16
};

/// For encoding; attention has rows of its own (kernels/pages/centre_rows.h). Where a side has no centres, its numbers
/// are 0 and null.
struct CentreTables {
  const float* keys_float;    // [kv_heads][key_centres][head_dim], before RoPE
  const float* values_float;  // [kv_heads][value_centres][head_dim]
  const float* page_turns;    // [32] slots of a page from position 0 on: cosines of all pairs, then sines
  int32_t key_centres;
  int32_t value_centres;
  CentreSearchTables key_search;
  CentreSearchTables value_search;
};

}  // namespace kvq::cuda
