#pragma once

#include "formats/page_format.h"

namespace kvq {

/// What a page format provides besides its kernels, which encode and attend. One constant per folder under formats/.
struct CodecOperations {
  size_t (*bytes)(Side, const SideFormat&, int32_t head_dim);
  /// To floats as stored: the caller undoes a Hadamard rotation.
  void (*decode)(Side, const SideFormat&, int32_t head_dim, const std::byte* data, int32_t begin, int32_t n,
                 float* out);
  bool (*valid)(Side, const SideFormat&, int32_t head_dim, const std::byte* data);
};

}  // namespace kvq
