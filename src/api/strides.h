// Strides of a caller's tensors: rows need not be contiguous, but may not overlap.
#pragma once

#include "core/tensor.h"

namespace kvq::api {

/// A tensor [tokens, heads, head_dim]; its name as in messages, like "batch->q".
struct CallerTensor {
  const char* name;
  int64_t tokens;
  int32_t heads;
  int32_t head_dim;
  kvq_dtype dtype;
};

/// The caller's strides, 0 for those of a dense tensor. Throws KVQ_E_ARGUMENT if one is negative, or an offset would be
/// too large for a number of bytes.
HeadStrides checked_strides(const CallerTensor& tensor, int64_t token_stride, int64_t head_stride);

/// Throws KVQ_E_ARGUMENT if rows might overlap each other.
void require_rows_apart(const CallerTensor& tensor, const HeadStrides& strides);

/// Bytes from the first row's first to the last row's last.
size_t extent_bytes(const CallerTensor& tensor, const HeadStrides& strides);

/// Memory of an argument, named as in messages.
struct Extent {
  const char* name;
  const void* begin;
  size_t bytes;
};

/// Refuse output that would be written while something else is still read or written.
void require_apart(const Extent& out, const Extent& other);

}  // namespace kvq::api
