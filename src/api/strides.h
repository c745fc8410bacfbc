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

/// Throws KVQ_E_LIMIT unless the tensor has at most kMostNumbers numbers.
void require_countable(const CallerTensor& tensor);

/// The caller's strides, 0 for those of a dense tensor. Throws KVQ_E_ARGUMENT if one is negative, or the tensor would
/// extend over more than kMostNumbers numbers; KVQ_E_LIMIT if a dense one would.
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
