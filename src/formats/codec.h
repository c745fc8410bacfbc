#pragma once

#include "formats/page_format.h"

namespace kvq {

/// What a page format provides besides its kernels, which encode and attend. One constant per folder under formats/.
struct CodecOperations {
  size_t alignment;  // of a side
  size_t (*bytes)(Side, const PageFormat&);
  /// Whether a side holds something of other heads' tokens.
  bool (*spans_heads)(Side, const PageFormat&);
  /// To floats as stored: the caller undoes a Hadamard rotation.
  void (*decode)(const EncodedSide&, int32_t begin, int32_t n, float* out);
  bool (*valid)(Side, const PageFormat&, const std::byte* data);
};

constexpr bool spans_no_heads(Side /*side*/, const PageFormat& /*format*/) { return false; }

}  // namespace kvq
