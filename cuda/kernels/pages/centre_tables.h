// Trained centres of a layer as encoding kernels read them, in device memory.
#pragma once

#include <cstdint>

namespace kvq::cuda {

/// Nearest-centre search for all heads; see kvq::centred::CentreSearch.
struct CentreSearchTables {
  const uint32_t* rounded;  // [kv_heads][quads][padded], four channels per word
  const float* means;       // [kv_heads][head_dim]
  const float* scales;      // [kv_heads]
  const float* biases;      // [kv_heads][padded]; for keys, under the page's rotations
  const float* own_biases;  // [kv_heads][padded] for keys rotated by per-slot positions, otherwise null
  int32_t padded;           // centres per head, rounded up to 16
};

/// Centres for encoding; attention has its own rows (kernels/pages/centre_rows.h). Fields of a side without centres are
/// 0 and null.
struct CentreTables {
  const float* keys_float;      // [kv_heads][key_centres][head_dim], before RoPE
  const float* values_float;    // [kv_heads][value_centres][head_dim]
  const float* page_rotations;  // [32] slots of a page at position 0: cosines of all pairs, then sines
  int32_t key_centres;
  int32_t value_centres;
  CentreSearchTables key_search;
  CentreSearchTables value_search;
};

}  // namespace kvq::cuda
