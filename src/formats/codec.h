#pragma once

#include "formats/page_format.h"

namespace kvq {

/// What a page format provides besides its kernels. One constant per folder under formats/.
struct CodecOperations {
  size_t (*bytes)(Side, const SideFormat&, int32_t head_dim);
  /// From an FP16 plane of 32 slots; applies the Hadamard rotation itself if the format asks for one.
  void (*encode)(Side, const SideFormat&, int32_t head_dim, const std::byte* float16, std::byte* out);
  /// To floats as stored: the caller undoes a Hadamard rotation.
  void (*decode)(Side, const SideFormat&, int32_t head_dim, const std::byte* data, int32_t begin, int32_t n,
                 float* out);
  bool (*valid)(Side, const SideFormat&, int32_t head_dim, const std::byte* data);
};

}  // namespace kvq
